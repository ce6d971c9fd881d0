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

    # -- the fields of its record, each as it is now -------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The service's address; empty: there is no router."""
        return str(self.record()["url"])

    @property
    def state(self) -> str:
        """How it stands, in a word: READY, LOADING, CRASHING ..."""
        return str(self.record()["state"])

    @property
    def user_name(self) -> str:
        return str(self.record()["user_name"])

    @property
    def user_id(self) -> int:
        return int(self.record()["user_id"])

    @property
    def account(self) -> str:
        return str(self.record()["account"])

    @property
    def wanted(self) -> int:
        """How many replicas the service is to have."""
        return int(self.record()["wanted"])

    @property
    def wanted_why(self) -> str:
        """Who or what said how many replicas the service is to have."""
        return str(self.record()["wanted_why"])

    @property
    def fixed(self) -> bool:
        """Whether somebody said how many, so that the load does not."""
        return bool(self.record()["fixed"])

    @property
    def scaling(self) -> Record:
        """What the autoscaler says now; empty where the number does not change by itself."""
        return dict(self.record()["scaling"])

    @property
    def traffic(self) -> Record:
        """What it was asked in the last minute: `requests_s`, `errors_s`, `latency_p99_s`; empty where nothing was
        heard of it."""
        return dict(self.record()["traffic"])

    @property
    def replicas_min(self) -> int:
        return int(self.record()["replicas_min"])

    @property
    def replicas_max(self) -> int:
        return int(self.record()["replicas_max"])

    @property
    def ready(self) -> int:
        """Replicas that take requests."""
        return int(self.record()["ready"])

    @property
    def revision(self) -> int:
        """Number of the revision that it is to have."""
        return int(self.record()["revision"])

    @property
    def serving(self) -> int:
        """Number of the revision that served last; 0: none has yet."""
        return int(self.record()["serving"])

    @property
    def revisions(self) -> list[Record]:
        """The newest last."""
        return list(self.record()["revisions"])

    @property
    def replicas(self) -> list[Record]:
        return list(self.record()["replicas"])

    @property
    def reasons(self) -> list[str]:
        """Why it has fewer ready replicas than wanted, in words (`record()["reasons"]` has them as data)."""
        return [str(each["text"]) for each in self.record()["reasons"]]

    @property
    def crashes(self) -> list[Record]:
        """Ends of late that nobody asked for, the newest last."""
        return list(self.record()["crashes"])

    @property
    def made_at(self) -> float:
        """Seconds since 1970."""
        return float(self.record()["made_at"])

    # -- waiting -------------------------------------------------------------------------------------------------------

    def wait_ready(self, timeout_s: float | None = None) -> Record:
        """Waits until all replicas that are wanted are ready and no update is under way; its record then.

        Raises TimeoutError when time runs out; ServiceFailed, with the reason, when its replicas crash again and again,
        an update was given up, or the service is gone.
        """
        said = self._wait("settled", timeout_s)
        if said["service"] is None:
            raise ServiceFailed(f"service {self.name} is gone", None)
        if said["failure"]:
            raise ServiceFailed(f"service {self.name}: {said['failure']}", said["service"])
        return dict(said["service"])

    def wait_gone(self, timeout_s: float | None = None) -> None:
        """Waits until it is gone, also if it is gone already. Raises TimeoutError when time runs out."""
        self._wait("gone", timeout_s)

    def _wait(self, until: str, timeout_s: float | None) -> Record:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LONG_POLL_S if deadline is None else min(_LONG_POLL_S, deadline - time.monotonic())
            said = self._get("wait", {"until": until, "timeout": max(0.0, left)})
            if said["done"]:
                return dict(said)
            if deadline is not None and time.monotonic() >= deadline:
                why = " ".join(each["text"] for each in said["service"]["reasons"])
                what = "gone" if until == "gone" else "ready"
                raise TimeoutError(f"service {self.name} is not {what} after {timeout_s:g} s: {why}")

    # -- changing ------------------------------------------------------------------------------------------------------

    def scale(self, replicas: int | None) -> Record:
        """Gives it so many replicas, whatever the load, until its next revision; None: as the load needs, again."""
        return self._post("scale", {"replicas": replicas})

    def stop(self) -> None:
        """Stops the service: its replicas finish their requests and end; then it is gone."""
        self._post("stop")

    def restart(self) -> Record:
        """Replaces all replicas, as an update would."""
        return self._post("restart")

    def rollback(self, to: int | None = None) -> Record:
        """Gives up an update or a canary; or goes back to revision `to`, or to the one that served before."""
        return self._post("rollback", {"to": to})

    def promote(self) -> Record:
        """Lets the canary take the place of the revision that serves."""
        return self._post("promote")

    def canary(self, percent: int) -> Record:
        """Gives the canary another part of the requests."""
        return self._post("canary", {"percent": percent})

    def events(self) -> list[Record]:
        """What happened to it, oldest first; also after it is gone."""
        return list(self._get("events")["events"])

    # -- keys ----------------------------------------------------------------------------------------------------------

    def keys(self) -> list[Record]:
        """The keys that there are: id, note, limits, who made them and when. (`record()["keys"]` is how many.)"""
        return list(self._get("keys")["keys"])

    def add_key(
        self, note: str = "", *, requests_per_minute: int | None = None, max_concurrency: int | None = None
    ) -> NewKey:
        """A new key: who sends it in `Authorization: Bearer KEY` may use the service from anywhere."""
        limits = {"requests_per_minute": requests_per_minute, "max_concurrency": max_concurrency}
        made = self.client.transport.post(self._path("keys"), {"note": note, **limits})
        return NewKey(made["id"], made["key"])

    def revoke_key(self, key_id: str) -> None:
        """Takes a key back, by its id."""
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
