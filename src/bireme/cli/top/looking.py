"""What `bireme top` shows, asked of the daemon: four requests a frame, and now and then the curves of jobs on screen.

Invariant: what is not measured is absent: a cluster without telemetry has a picture like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bireme.cli.logs import last_lines_begin
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.voice import refused_by_daemon
from bireme.evidence.opened import NoFileError, NotTheirsError, open_output
from bireme.slurm.formats.visible import visible, visible_values

Record = dict[str, Any]
_JOB_FIELDS = (
    "job_id,array_job_id,array_task_id,array_tasks,het_job_id,het_offset,name,user_name,partition,state,reason,priority,"
    "start_time,expected_start,elapsed_s,time_limit_s,node_list,node_count,num_cpus,tres_requested,tres_allocated,"
    "std_out,generation,user_id"
)
_LIVE = frozenset({"RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "PENDING"})
LAST_S = 600.0
"""What the small curves show."""
POINTS = 20
_AGAIN_S = 10.0
_AT_ONCE = 4
_USES = (("gpu_sm_active", "SM", 100.0), ("gpu_util", "util", 100.0), ("use_gpu_util", "share", 100.0))
"""The best that is known of a job's use of its GPUs stands first."""
_PAGE_METRICS = (
    "gpu_tensor_active", "gpu_sm_active", "gpu_util", "use_gpu_util", "gpu_memory_used", "use_gpu_memory", "gpu_power",
    "cpu_user", "memory", "processes",
)  # fmt: skip
_LONGEST = 400


@dataclass(frozen=True, slots=True)
class Spark:
    """How a job did in the last minutes: `word` says what was measured."""

    values: tuple[float | None, ...]
    top: float
    word: str
    newest: float | None


@dataclass(frozen=True, slots=True)
class Picture:
    """What one frame shows."""

    about: Record
    nodes: list[Record]
    jobs: list[Record]
    gpus: list[Record] = field(default_factory=list)
    sparks: dict[int, Spark] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobPicture:
    """What the page of one job shows: curves as the daemon gives them, and the last lines of its output."""

    curves: list[Record]
    lines: list[str]
    problem: str = ""


class Watch:
    """Asks again for what is old. `now` is the daemon's clock."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._sparks: dict[int, tuple[float, Spark | None]] = {}
        self._starts: dict[int, int] = {}
        """Which start of each job that runs it is: what an earlier one did is not shown as if it went on."""
        self._numbers: dict[tuple[str, str], tuple[int, str]] = {}
        """Of GPUs by node and UUID: the number, and of an instance its profile."""

    def picture(self) -> Picture:
        try:
            about = visible_values(self._transport.get("/v1/ping"))
            nodes = visible_values(self._transport.get("/v1/nodes")["nodes"])
            jobs = visible_values(self._transport.get("/v1/jobs", {"fields": _JOB_FIELDS})["jobs"])
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon("", error) from error
        self._starts = {job["job_id"]: job.get("generation") or 0 for job in jobs if job["state"] != "PENDING"}
        gpus, problem = self._gpus()
        known = {job_id: spark for job_id, (_, spark) in self._sparks.items() if spark is not None}
        return Picture(about, nodes, [job for job in jobs if job["state"] in _LIVE], gpus, known, problem)

    def _gpus(self) -> tuple[list[Record], str]:
        try:
            told = visible_values(self._transport.get("/v1/telemetry/now"))
        except ApiError as error:  # nothing is measured here
            return [], visible(str(error))
        except BiremeUnavailable as error:
            raise refused_by_daemon("", error) from error
        gpus = list(told["gpus"])
        self._numbers = {(gpu["node"], gpu["uuid"]): (gpu["index"], gpu["profile"]) for gpu in gpus}
        return gpus, told["problem"]

    def refresh(self, job_ids: Sequence[int], now: float) -> None:
        """The small curves of these jobs: of few at once, and of each now and then."""
        self._sparks = {job_id: kept for job_id, kept in self._sparks.items() if job_id in set(job_ids)}
        due = [job_id for job_id in job_ids if now - self._sparks.get(job_id, (0.0, None))[0] >= _AGAIN_S]
        for job_id in due[:_AT_ONCE]:
            metrics = [name for name, _, _ in _USES] + ["cpu_user"]
            curves = self._curves(job_id, metrics, now, POINTS)
            self._sparks[job_id] = (now, spark_of(curves))

    def job(self, record: Record, now: float, points: int, lines: int) -> JobPicture:
        text, problem = tail_of(record.get("std_out") or "", record.get("user_id"), lines)
        curves = self._curves(record["job_id"], _PAGE_METRICS, now, points)
        return JobPicture(
            [curve for _, curve in sorted(map(self._placed, curves), key=lambda each: each[0])], text, problem
        )

    def _placed(self, curve: Record) -> tuple[tuple[int, str, int, str], Record]:
        """Where it stands on a page, and the curve with the place that people know."""
        whose = curve["id"].rpartition("@")[2]
        number, profile = self._numbers.get((curve["node"], whose), (-1, ""))
        if number >= 0:
            curve = {**curve, "place": f"{curve['node']} GPU {number}{' ' + profile if profile else ''}"}
        metric = curve["metric"]
        return (_PAGE_METRICS.index(metric), curve["node"], number, curve["id"]), curve

    def _curves(self, job_id: int, metrics: Sequence[str], now: float, points: int) -> list[Record]:
        if job_id not in self._starts:
            return []
        asked: dict[str, str | int | float | None] = {
            "job": job_id, "generation": self._starts[job_id] or None, "metrics": ",".join(metrics),
            "start": now - LAST_S, "end": now, "points": points, "reduce": "mean",
        }  # fmt: skip
        try:
            found: list[Record] = visible_values(self._transport.get("/v1/telemetry/series", asked)["curves"])
        except (ApiError, BiremeUnavailable):  # it is over, nothing is measured, or not now
            return []
        return found


def spark_of(curves: Sequence[Record]) -> Spark | None:
    """Of its GPUs the mean, by the best that is measured; else its CPUs together."""
    for metric, word, top in _USES:
        columns = [curve["mean"] for curve in curves if curve["metric"] == metric]
        if columns:
            return _spark([_mean(each) for each in zip(*columns, strict=False)], top, word)
    columns = [curve["mean"] for curve in curves if curve["metric"] == "cpu_user"]
    if not columns:
        return None
    sums = [_sum(each) for each in zip(*columns, strict=False)]
    return _spark(sums, max((value for value in sums if value is not None), default=1.0) or 1.0, "CPUs")


def _spark(values: Sequence[float | None], top: float, word: str) -> Spark:
    newest = next((value for value in reversed(values) if value is not None), None)
    return Spark(tuple(values), top, word, newest)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def tail_of(path: str, owner: int | None, lines: int) -> tuple[list[str], str]:
    """The last lines of a file of this user's, made visible, or why there are none. What is no file is not read."""
    if not path or lines <= 0:
        return [], ""
    try:
        with open_output(path, owner) as file:
            file.seek(last_lines_begin(file, lines))
            data = file.read(lines * _LONGEST * 4)
    except NoFileError:
        return [], f"{path} is no file"
    except NotTheirsError:
        return [], f"{path} is not a file of the job's owner: not shown"
    except OSError as error:
        return [], f"cannot read {path}: {error.strerror}"
    text = data.decode("utf-8", "replace").split("\n")
    shown = text[:-1] if text and not text[-1] else text
    return [visible(line.rstrip("\r").rpartition("\r")[2][:_LONGEST]) for line in shown[-lines:]], ""
