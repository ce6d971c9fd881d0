"""scontrol -M: a connection through which only one of the daemon's clusters is seen.

Used by `Session` in the place of the plain connection. What a daemon has once (configuration, reservations, licenses,
associations) is the same through it. Invariant: a job, node or partition of another cluster is unknown here, in the
words that the daemon has for one that nobody has; nothing of it is shown or changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError
from bireme.core.model.refusals import Refusal, Why
from bireme.slurm.hostlist import expand

if TYPE_CHECKING:
    from bireme.commands.surroundings import Port

Answer = dict[str, Any]


class OneCluster:
    def __init__(self, transport: Port, name: str) -> None:
        self._transport = transport
        self.name = name

    def get(self, path: str, params: dict[str, Any] | None = None) -> Any:
        kind, name, more = _parts(path)
        if kind == "jobs" and more:
            self._check_job(name)
        if kind == "jobs" and not more:
            return self._jobs(path, params, named=bool(name))
        if path == "/v1/nodes":
            return self._only_nodes(self._asked_with(path, params, "partitions"))
        answer = self._transport.get(path, params)
        if path == "/v1/partitions":
            answer["partitions"] = [each for each in answer["partitions"] if each["cluster"] == self.name]
        return answer

    def get_bytes(self, path: str) -> bytes:
        kind, name, _ = _parts(path)
        if kind == "jobs":
            self._check_job(name)
        return self._transport.get_bytes(path)

    def post(self, path: str, body: Any = None) -> Any:
        kind, name, _ = _parts(path)
        if kind == "jobs":
            self._check_job(name)
        elif kind == "top":
            for job in body["jobs"]:
                self._check_job(str(job))
        elif kind == "orders":
            body = {**body, "cluster": self.name}
        elif kind == "partitions" and name not in self._partitions():
            raise _unknown(Why.INVALID_PARTITION_NAME)
        elif path == "/v1/nodes/update":
            known = {node["name"] for node in self.get("/v1/nodes", {"fields": "name"})["nodes"]}
            if not known.issuperset(expand(body["nodes"])):
                raise _unknown(Why.INVALID_NODE_NAME)
        return self._transport.post(path, body)

    def _jobs(self, path: str, params: dict[str, Any] | None, *, named: bool) -> Answer:
        answer = self._asked_with(path, params, "cluster")
        answer["jobs"] = [job for job in answer["jobs"] if job["cluster"] == self.name]
        if named and not answer["jobs"]:
            raise _unknown(Why.INVALID_JOB_ID)
        return answer

    def _check_job(self, name: str) -> None:
        self._jobs(path_of("jobs", name), {"fields": "job_id"}, named=True)

    def _only_nodes(self, answer: Answer) -> Answer:
        """A node of no partition does not say whose it is: it is shown with the daemon's own."""
        theirs, is_own = self._partitions(), self.name == self._transport.get("/v1/ping")["clusters"][0]
        answer["nodes"] = [
            node
            for node in answer["nodes"]
            if not theirs.isdisjoint(node["partitions"]) or (is_own and not node["partitions"])
        ]
        return answer

    def _partitions(self) -> set[str]:
        return {each["name"] for each in self.get("/v1/partitions")["partitions"]}

    def _asked_with(self, path: str, params: dict[str, Any] | None, field: str) -> Answer:
        """The answer, with a field that tells the cluster even where only some fields were asked for."""
        asked = dict(params or {})
        if "fields" in asked:
            asked["fields"] = f"{asked['fields']},{field}"
        return dict(self._transport.get(path, asked))


def _parts(path: str) -> tuple[str, str, str]:
    """What kind of thing a path names, which one, and what of it: `/v1/jobs/42/steps`."""
    kind, _, rest = path.removeprefix("/v1/").partition("/")
    name, _, more = rest.partition("/")
    return kind, name, more


def _unknown(why: Why) -> ApiError:
    refusal = Refusal(why)
    return ApiError(refusal.message, status=404, code=refusal.name, slurm_errno=refusal.errno)
