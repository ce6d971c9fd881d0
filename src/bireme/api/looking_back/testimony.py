"""What the daemon knows of a job's end, as lines of evidence: the journal's, the nodes' and GPUs', what was measured.

Called by `routes/diagnosis` in a thread: it reads the journal, the history and the store of series. Who may see it was
asked before. What stands in the job's output is not here: only its owner's own processes open that.
Invariants: what is missing is said in `absent`, and the rest is told. Of others' processes and jobs nothing is told but
how many jobs met the same fault on the same GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bireme.api.looking_back.befallen import AFTER_S, BEFORE_S, Stay, befallen, machines_of
from bireme.api.looking_back.known import Sources
from bireme.core.diagnosis.model import Line
from bireme.core.diagnosis.records import Start, latest_start, lines_of_outcome, lines_of_start
from bireme.core.model.events import StepCreated
from bireme.core.model.jobs import Outcome
from bireme.core.model.resources import ExitStatus
from bireme.evidence.wire import line_data
from bireme.ports import Happened, HistoryQuery, Series, SeriesError, Store
from bireme.slurm.filenames import FilenameValues, expand_filename

MOST_OUTPUTS = 2_000
"""Files: a gang of a thousand ranks may have one for each stream of each."""
MOST_LINES = 2_000
_OF_LATE_S = 30 * 86_400.0
"""So long ago a fault of the same GPU in another job still says something about the GPU."""
_NOWHERE = ("", "none", "/dev/null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """The job that is asked for, as the queue or the history has it."""

    job: str
    job_id: int
    array_job_id: int | None
    array_task_id: int | None
    name: str
    user: str
    uid: int
    state: str
    std_out: str
    std_err: str
    work_dir: str
    record: Mapping[str, Any]


def evidence_of(whose: Whose, sources: Sources, now: float) -> dict[str, Any]:
    """For JSON."""
    start = latest_start(sources.store.story(whose.job_id))
    absent: list[str] = []
    if start is None:
        lines, steps = _of_history(whose, sources.store), []
        absent.append("Its story is no longer in the journal: which task ended first is not known.")
    else:
        lines, steps = lines_of_start(start), start.steps
    if sources.series is None:
        absent.append(f"No faults of GPUs and nodes: {sources.no_series}.")
    else:
        try:
            lines += _faults(whose, start, sources, sources.series, now)
        except SeriesError as error:
            absent.append(f"Faults of GPUs and nodes cannot be read: {error}.")
    outputs = list(islice(_outputs(whose, steps), MOST_OUTPUTS + 1))
    if len(outputs) > MOST_OUTPUTS:
        absent.append(f"It wrote more than {MOST_OUTPUTS} output files: the rest is not looked at.")
    return {
        "job": whose.job,
        "job_id": whose.job_id,
        "name": whose.name,
        "user": whose.user,
        "owner_uid": whose.uid,
        "state": whose.state,
        "start": start.began_at if start is not None else whose.record.get("start_time"),
        "end": start.ended_at if start is not None else whose.record.get("end_time"),
        "lines": [line_data(line) for line in lines[:MOST_LINES]],
        "outputs": outputs[:MOST_OUTPUTS],
        "absent": absent,
    }


def _of_history(whose: Whose, store: Store) -> list[Line]:
    query = HistoryQuery(jobs=((whose.array_job_id or whose.job_id, whose.array_task_id),), with_steps=True)
    records = [record for record in store.finished(query) if record["job_id"] == whose.job_id] or [dict(whose.record)]
    record, lines = records[-1], []
    for step in record.get("steps") or ():
        if not (status := _status(step)).ok:
            lines += lines_of_outcome(Outcome(str(step.get("state") or "FAILED"), status), step.get("end_time"))[1:]
    outcome = Outcome(record["state"], _status(record), by_uid=record.get("cancelled_by"))
    return lines + lines_of_outcome(outcome, record.get("end_time"))


def _status(record: Mapping[str, Any]) -> ExitStatus:
    return ExitStatus(int(record.get("exit_code") or 0), int(record.get("exit_signal") or 0))


# --- GPUs and nodes ----------------------------------------------------------------------------------------------


def _faults(whose: Whose, start: Start | None, sources: Sources, series: Series, now: float) -> list[Line]:
    began = start.began_at if start is not None else whose.record.get("start_time")
    if began is None:
        return []
    ended = start.ended_at if start is not None else whose.record.get("end_time")
    end = float(ended) if ended is not None else now
    nodes = set(start.allocation.node_names) if start is not None and start.allocation is not None else set()
    stay = Stay(float(began), end, machines_of(nodes, sources.machines))
    told = befallen(series, whose.job_id, [stay], (stay.start - BEFORE_S, end + AFTER_S))
    met = _met_by_others(series, {one.uuid for one in told if one.uuid}, whose.job_id, end + AFTER_S)
    return [_line_of(one, sources.gpu_names, met) for one in told]


def _met_by_others(series: Series, uuids: Collection[str], job_id: int, end: float) -> dict[tuple[str, str, int], int]:
    """By GPU, kind and number: other jobs that met the same there of late."""
    if not uuids:
        return {}
    jobs: dict[tuple[str, str, int], set[str]] = {}
    for one in series.happenings(task_prefix="\x7f", uuids=uuids, start=end - _OF_LATE_S, end=end):
        job = one.task.partition(".")[0]
        if job and job != str(job_id):
            jobs.setdefault((one.uuid, one.kind, one.code), set()).add(job)
    return {key: len(found) for key, found in jobs.items()}


def _line_of(one: Happened, gpu_names: Mapping[str, str], met: Mapping[tuple[str, str, int], int]) -> Line:
    words = {
        "xid": f"Xid {one.code}",
        "sxid": f"SXid {one.code}",
        "gpu lost": "GPU is lost",
        "gpu back": "GPU answers again",
        "stray": "a process of nobody's is on the GPU",
    }.get(one.kind, "")
    is_stray = one.kind == "stray"
    pid = f", pid={one.pid}" if words and one.pid and not is_stray else ""
    text = ", ".join(filter(None, (f"{words}{pid}", "" if is_stray else one.text)))
    task = one.task.rpartition(".")[2]
    return Line(
        text=text,
        source="kernel" if one.kind == "kernel" else "device",
        at=one.at,
        node=one.node,
        rank=int(task) if task.isdigit() else None,
        device=gpu_names.get(one.uuid, one.uuid),
        pid=0 if is_stray else one.pid,
        others=met.get((one.uuid, one.kind, one.code), 0),
    )


# --- output files ------------------------------------------------------------------------------------------------


def _outputs(whose: Whose, steps: Iterable[StepCreated]) -> Iterator[dict[str, Any]]:
    """All files that the start wrote to, each once, the script's first."""
    seen: set[str] = set()
    for stream, path in (("out", whose.std_out), ("err", whose.std_err)):
        if path not in _NOWHERE and path not in seen:
            seen.add(path)
            yield {"path": path, "stream": stream, "rank": None, "node": ""}
    for step in steps:
        for stream, pattern in (("out", step.spec.std_out), ("err", step.spec.std_err)):
            if pattern in _NOWHERE or ("%" not in pattern and pattern in seen):
                continue
            for output in _of_step(whose, step, stream, pattern):
                if output["path"] not in seen:
                    seen.add(output["path"])
                    yield output


def _of_step(whose: Whose, step: StepCreated, stream: str, pattern: str) -> Iterator[dict[str, Any]]:
    folder = step.spec.work_dir or whose.work_dir
    for place, node in enumerate(step.nodes):
        for task in node.task_ids:
            values = FilenameValues(
                job_id=whose.job_id,
                array_job_id=whose.array_job_id,
                array_task_id=whose.array_task_id,
                step=step.step_id,
                node=node.node.partition(".")[0],
                node_index=place,
                task_index=task,
                user=whose.user,
                job_name=whose.name,
            )
            name = expand_filename(pattern, values)
            yield {
                "path": name if name.startswith("/") else f"{folder}/{name}",
                "stream": stream,
                "rank": task if "%t" in pattern else None,
                "node": node.node,
            }
