"""One scontrol process: its options, its connection, and the words for what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bireme.commands import reports
from bireme.commands.clusters import UnknownClusterError, chosen_clusters
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.scontrol.one_cluster import OneCluster

if TYPE_CHECKING:
    from bireme.commands.scontrol.one_cluster import OneCluster
    from bireme.commands.surroundings import Port
    from bireme.slurm.formats.values import Context


class Session:
    """Options hold for every command of the process; the connection is opened when a command needs it."""

    def __init__(self, asked: Mapping[str, str | None]) -> None:
        self._asked = dict(asked)
        self._transport: Port | OneCluster | None = None
        self.ended = False

    def has(self, name: str) -> bool:
        return name in self._asked

    def set(self, name: str) -> int:
        self._asked[name] = None
        return 0

    def unset(self, name: str) -> int:
        self._asked.pop(name, None)
        return 0

    @property
    def wants_data(self) -> bool:
        return self.has("json") or self.has("yaml")

    @property
    def oneliner(self) -> bool:
        return self.has("oneliner")

    @property
    def transport(self) -> Port | OneCluster:
        """To all that the daemon has, or with -M (or SLURM_CLUSTERS) to one of its clusters."""
        if self._transport is None:
            plain, name = reports.transport(), self._asked.get("clusters")
            if name is not None:
                self._transport = _to_one_cluster(plain, name)
            elif names := reports.clusters_named("scontrol", None):
                self._transport = OneCluster(plain, names[0])
            else:
                self._transport = plain
        return self._transport

    def choose_cluster(self, name: str) -> int:
        """In the prompt: what follows is about this one; without a name, about all again."""
        self._asked["clusters"] = name or None
        self._transport = None
        return 0

    def context(self, answer: Mapping[str, Any] | None = None) -> Context:
        return reports.make_context(now=float((answer or {}).get("now") or 0) or None)

    def get(self, path: str, what: str, params: dict[str, Any] | None = None) -> Any:
        """Asks the API; a refusal becomes `what: message`, as Slurm's own loading functions say it."""
        try:
            return self.transport.get(path, params)
        except (ApiError, BiremeUnavailable) as error:
            raise reports.failure("scontrol", what, error) from None

    def post(self, path: str, body: Any = None) -> Any:
        """Asks for a change; the caller words the refusal (`ApiError`)."""
        try:
            return self.transport.post(path, body)
        except BiremeUnavailable as error:
            raise reports.failure("scontrol", "slurm_update error", error) from None

    def say(self, text: str) -> None:
        if not self.has("quiet"):
            reports.say(text)


def _to_one_cluster(transport: Port, text: str) -> OneCluster:
    """As Slurm's scontrol: one cluster at a time, the first of those that are named."""
    try:
        return OneCluster(transport, chosen_clusters(transport, text)[0])
    except UnknownClusterError as error:
        told = error.said_by("scontrol")
        raise reports.CommandError(f"{told}\nscontrol: fatal: Could not get cluster information") from None
