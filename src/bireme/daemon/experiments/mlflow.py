"""MLflow's REST interface, as much of it as runs of jobs need: plain HTTP, bounded in time and size.

Used by the keeper of runs alone. What the server says is read as text and numbers and believed no further.
Invariant: every question returns or raises Unanswered within its limit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlencode

from bireme.daemon.scaling.fetching import Unanswered, fetch

LIMIT_S = 30.0
MOST_BYTES = 4 * 1024 * 1024
MOST_EXPERIMENTS = 1000
"""So many are remembered by their names."""
MOST_POINTS = 5000
"""Of one metric's history."""
_MOST_WORDS = 200

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Point:
    at: float
    """Seconds since the epoch."""
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class RunSeen:
    """A run as the server has it."""

    run_id: str
    experiment_id: str
    status: str
    name: str
    deleted: bool = False
    metrics: Mapping[str, Point] = field(default_factory=dict)
    """The latest of each."""
    params: Mapping[str, str] = field(default_factory=dict)


def _understood(method: Callable[Asked, Awaitable[Found]]) -> Callable[Asked, Coroutine[Any, Any, Found]]:
    """An answer of another shape than MLflow's is none."""

    @wraps(method)
    async def asked(*words: Asked.args, **named: Asked.kwargs) -> Found:
        try:
            return await method(*words, **named)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise Unanswered("the answer is not MLflow's", 200) from None

    return asked


class Mlflow:
    """One tracking server. `credential`: the daemon's Authorization; empty: none."""

    def __init__(self, base: str, credential: str = "") -> None:
        self.base = base.rstrip("/")
        self._fields = {"Content-Type": "application/json"}
        if credential:
            self._fields["Authorization"] = credential
        self._experiments: dict[str, str] = {}

    async def well(self) -> None:
        """Returns where it answers at all. Raises Unanswered."""
        await self._post("experiments/search", {"max_results": 1})

    @_understood
    async def experiment(self, name: str) -> str:
        """The id of the experiment of that name, which is made where it is missing."""
        if (known := self._experiments.get(name)) is not None:
            return known
        found = await self._experiment_named(name)
        if found is None:
            try:
                found = str((await self._post("experiments/create", {"name": name}))["experiment_id"])
            except Unanswered as error:
                if _code(error) != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = await self._experiment_named(name)  # somebody else was faster
        if not found:
            raise Unanswered(f"there is an experiment {name!r} that it does not tell of", 200)
        if len(self._experiments) >= MOST_EXPERIMENTS:
            self._experiments.clear()
        self._experiments[name] = found
        return found

    async def _experiment_named(self, name: str) -> str | None:
        try:
            answer = await self._get("experiments/get-by-name", {"experiment_name": name})
        except Unanswered as error:
            if gone(error):
                return None
            raise
        found = answer["experiment"]
        if found.get("lifecycle_stage") == "deleted":
            raise Unanswered(f"experiment {name!r} was deleted there: restore it, or name another", 200)
        return str(found["experiment_id"])

    @_understood
    async def make_run(self, experiment_id: str, name: str, tags: Mapping[str, str], at: float) -> str:
        """The new run's id."""
        asked = {"experiment_id": experiment_id, "run_name": name, "start_time": int(at * 1000), "tags": _pairs(tags)}
        try:
            answer = await self._post("runs/create", asked)
        except Unanswered:
            self._experiments.clear()  # it may have been deleted
            raise
        return str(answer["run"]["info"]["run_id"])

    @_understood
    async def experiment_ids(self) -> list[str]:
        """Of all experiments that the daemon may see, `MOST_EXPERIMENTS` at most."""
        answer = await self._post("experiments/search", {"max_results": MOST_EXPERIMENTS})
        return [str(each["experiment_id"]) for each in answer.get("experiments") or ()]

    @_understood
    async def run_tagged(self, experiment_ids: Sequence[str], tag: str, value: str) -> RunSeen | None:
        """The newest run of these experiments with this tag; `value` has no quotes in it."""
        assert "'" not in value
        assert "`" not in tag
        asked = {
            "experiment_ids": list(experiment_ids),
            "filter": f"tags.`{tag}` = '{value}'",
            "max_results": 1,
            "order_by": ["start_time DESC"],
        }
        found = (await self._post("runs/search", asked)).get("runs") or []
        return _run(found[0]) if found else None

    @_understood
    async def run(self, run_id: str) -> RunSeen:
        """Raises Unanswered; `gone` says whether there is no such run."""
        return _run((await self._get("runs/get", {"run_id": run_id}))["run"])

    async def set_status(self, run_id: str, status: str, ended_at: float | None = None) -> None:
        asked: dict[str, Any] = {"run_id": run_id, "status": status}
        if ended_at is not None:
            asked["end_time"] = int(ended_at * 1000)
        await self._post("runs/update", asked)

    async def delete_run(self, run_id: str) -> None:
        await self._post("runs/delete", {"run_id": run_id})

    async def log(self, run_id: str, figures: Mapping[str, float], at: float, step: int) -> None:
        metrics = [
            {"key": name, "value": value, "timestamp": int(at * 1000), "step": step} for name, value in figures.items()
        ]
        await self._post("runs/log-batch", {"run_id": run_id, "metrics": metrics})

    @_understood
    async def history(self, run_id: str, metric: str) -> list[Point]:
        """All that was logged of a metric, oldest first, `MOST_POINTS` at most."""
        asked = {"run_id": run_id, "metric_key": metric, "max_results": str(MOST_POINTS)}
        answer = await self._get("metrics/get-history", asked)
        return sorted((_point(each) for each in answer.get("metrics") or ()), key=lambda point: (point.at, point.step))

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _get(self, what: str, asked: Mapping[str, str]) -> dict[str, Any]:
        return await self._ask(f"{what}?{urlencode(asked, errors='replace')}", None)

    async def _post(self, what: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        return await self._ask(what, json.dumps(asked).encode())

    async def _ask(self, path: str, post: bytes | None) -> dict[str, Any]:
        url = f"{self.base}/api/2.0/mlflow/{path}"
        try:
            body = await fetch(url, limit_s=LIMIT_S, limit_bytes=MOST_BYTES, post=post, fields=self._fields)
        except Unanswered as error:
            raise Unanswered(_with_words(error), error.status, error.body) from None
        try:
            answer = json.loads(body)
        except ValueError:
            raise Unanswered("the answer is not JSON: is this an MLflow server?", 200) from None
        if not isinstance(answer, dict):
            raise Unanswered("the answer is not MLflow's", 200)
        return answer


def _said(error: Unanswered) -> dict[str, Any]:
    try:
        said = json.loads(error.body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _code(error: Unanswered) -> str:
    return str(_said(error).get("error_code", ""))


def gone(error: Unanswered) -> bool:
    """Whether the server says that what was asked for is not there."""
    return _code(error) == "RESOURCE_DOES_NOT_EXIST"


def _with_words(error: Unanswered) -> str:
    """The server's own words, where it has some: they may hold anything."""
    words = str(_said(error).get("message", ""))[:_MOST_WORDS]
    clean = "".join(letter if letter.isprintable() else " " for letter in words)
    return f"{error}: {clean}" if clean else str(error)


def _pairs(tags: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
    return [{"key": name, "value": value} for name, value in tags.items()]


def _run(told: Mapping[str, Any]) -> RunSeen:
    info, data = told["info"], told.get("data") or {}
    return RunSeen(
        run_id=str(info["run_id"]),
        experiment_id=str(info["experiment_id"]),
        status=str(info.get("status", "")),
        name=str(info.get("run_name", "")),
        deleted=info.get("lifecycle_stage") == "deleted",
        metrics={str(each["key"]): _point(each) for each in data.get("metrics") or ()},
        params={str(each["key"]): str(each.get("value", "")) for each in data.get("params") or ()},
    )


def _point(told: Mapping[str, Any]) -> Point:
    value = told.get("value")
    number = float(value) if isinstance(value, int | float | str) else math.nan
    return Point(int(told.get("timestamp", 0)) / 1000, int(told.get("step", 0)), number)
