"""A service from Python: what `Client.serve` and `Client.service` return.

A thin, typed layer over the API's JSON, as the rest of the SDK. Asking a `Service` asks the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bireme.client.transport import BiremeError

if TYPE_CHECKING:  # the client imports this module
    from bireme.client.sdk import Client

Record = dict[str, Any]
_LONG_POLL_S = 60.0


class ServiceFailed(BiremeError):  # noqa: N818  # says what happened
    """A service that was waited for did not get ready. `record` says how it stands; None: it is gone."""

    def __init__(self, message: str, record: Record | None) -> None:
        self.record = record
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key as it was made: `key` is not kept anywhere else."""

    id: str
    key: str


@dataclass(frozen=True, slots=True)
class Service:
    """One service, by its name."""

    client: Client
    name: str

    def record(self) -> Record:
        """All that is known of it: what `bireme service show --json` prints."""
        return dict(self._get()["service"])

    @property
    def url(self) -> str:
        return str(self.record()["url"])

    @property
    def state(self) -> str:
        return str(self.record()["state"])

    @property
    def ready(self) -> int:
        return int(self.record()["ready"])

    @property
    def wanted(self) -> int:
        return int(self.record()["wanted"])

    @property
    def replicas(self) -> list[Record]:
        return list(self.record()["replicas"])

    @property
    def reasons(self) -> list[str]:
        """Why it has fewer ready replicas than wanted, in words."""
        return [str(each["text"]) for each in self.record()["reasons"]]

    def wait_ready(self, timeout_s: float | None = None) -> Record:
        """Waits until all replicas that are wanted are ready and no update is under way; its record then.

        Raises TimeoutError when time runs out, ServiceFailed when the update was given up or the service is gone.
        """
        record = self._wait("settled", timeout_s)
        if record is None:
            raise ServiceFailed(f"service {self.name} is gone", None)
        newest = record["revisions"][-1]
        if newest["phase"] == "failed":
            raise ServiceFailed(f"revision {newest['number']} of {self.name} was given up: {newest['why']}", record)
        return record

    def wait_gone(self, timeout_s: float | None = None) -> None:
        self._wait("gone", timeout_s)

    def _wait(self, until: str, timeout_s: float | None) -> Record | None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LONG_POLL_S if deadline is None else min(_LONG_POLL_S, deadline - time.monotonic())
            said = self._get("wait", {"until": until, "timeout": max(0.0, left)})
            if said["done"]:
                return dict(said["service"]) if said["service"] is not None else None
            if deadline is not None and time.monotonic() >= deadline:
                why = "; ".join(each["text"] for each in said["service"]["reasons"])
                raise TimeoutError(f"service {self.name} is not {until} after {timeout_s} s: {why}")

    def scale(self, replicas: int | None) -> Record:
        """So many replicas, whatever the load, until its next revision; None: as the load needs, again."""
        return self._post("scale", {"replicas": replicas})

    def stop(self) -> None:
        """Its replicas finish their requests and end; then it is gone."""
        self._post("stop")

    def restart(self) -> Record:
        return self._post("restart")

    def rollback(self, to: int | None = None) -> Record:
        """Gives up an update or a canary; or goes back to revision `to`, or to the one that served before."""
        return self._post("rollback", {"to": to})

    def promote(self) -> Record:
        return self._post("promote")

    def events(self) -> list[Record]:
        """What happened to it, oldest first."""
        return list(self._get("events")["events"])

    def keys(self) -> list[Record]:
        return list(self._get("keys")["keys"])

    def add_key(
        self, note: str = "", *, requests_per_minute: int | None = None, max_concurrency: int | None = None
    ) -> NewKey:
        """A new key: who sends it in `Authorization: Bearer KEY` may use the service from anywhere."""
        limits = {"requests_per_minute": requests_per_minute, "max_concurrency": max_concurrency}
        made = self.client.transport.post(self._path("keys"), {"note": note, **limits})
        return NewKey(made["id"], made["key"])

    def revoke_key(self, key_id: str) -> None:
        self.client.transport.post(self._path("keys", key_id, "revoke"))

    def __str__(self) -> str:
        return self.name

    def _path(self, *parts: str) -> str:
        return "/".join(("/v1/services", *(quote(part, safe="") for part in (self.name, *parts))))

    def _get(self, what: str = "", params: Mapping[str, Any] | None = None) -> Any:
        return self.client.transport.get(self._path(*filter(None, [what])), params)

    def _post(self, what: str, body: Record | None = None) -> Record:
        answered: Record = self.client.transport.post(self._path(what), body)["service"] or {}
        return answered
