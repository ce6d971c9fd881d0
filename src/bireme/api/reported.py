"""What a job did with what it had, as it is told: its record and its digest put together.

A digest is read where it is kept; of a start that runs, or ended a moment ago, it is reckoned from the curves there and
then. Called by the routes of reports, history and usage, in threads.
Invariant: a digest is of the start that the record is about, by its generation and its time: ids may be given again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from bireme.api.routing import Context
from bireme.core.model.steps import step_label
from bireme.core.telemetry.digest import Digest, StepDigest
from bireme.core.telemetry.efficiency import Had
from bireme.ports import Series, SeriesError
from bireme.slurm.formats.sacct_fields import OVER
from bireme.store.codec import all_fields

Record = Mapping[str, Any]
FRESH_S = 3600.0
"""A start that ended so long ago and has no digest has none to come but by chance: lists do not look at its curves."""
MOST_LIVE = 200
"""Starts of one answer whose curves are read."""
_SLACK_S = 5.0


def series_of(api: Context) -> Series | None:
    """Where curves are kept; None: nothing is measured here, or it cannot be read now."""
    telemetry = api.service.telemetry()
    return telemetry.series if telemetry is not None else None


def is_over(record: Record) -> bool:
    return record.get("state") in OVER


def had_of(record: Record, now: float) -> Had:
    """What the record says, in the words of `efficiency`."""
    start, over = record.get("start_time"), is_over(record)
    tres = record.get("tres_allocated") or {}
    usage = record.get("usage") or {}
    counted = bool(usage.get("tasks")) or any(usage.get(name) for name in ("user_cpu_s", "system_cpu_s", "max_rss_kib"))
    return Had(
        job_id=record["job_id"],
        generation=int(record.get("generation") or 0),
        user=str(record.get("user_name") or record.get("user_id") or ""),
        account=str(record.get("account") or ""),
        state=str(record.get("state") or ""),
        start=start,
        end=(record.get("end_time") or now) if over else None,
        elapsed_s=float(record.get("elapsed_s") or 0),
        limit_s=record.get("time_limit_s"),
        waited_s=_waited_s(record, now),
        nodes=int(record.get("node_count") or 0) if start is not None else 0,
        cpus=int(tres.get("cpu") or 0),
        memory_mib=int(tres.get("mem") or 0),
        gpus=int(tres.get("gres/gpu") or 0),
        cpu_s=float(usage.get("user_cpu_s") or 0) + float(usage.get("system_cpu_s") or 0) if counted else None,
        rss_mib=(_rss_mib(usage) or None) if counted else None,  # no process has none: nobody looked in time
    )


def _waited_s(record: Record, now: float) -> float | None:
    eligible = record.get("eligible_time")
    if eligible is None:
        return None
    until = record.get("start_time") or (record.get("end_time") if is_over(record) else None) or now
    return max(0.0, float(until - eligible))


def _rss_mib(usage: Record) -> float:
    return max(float(usage.get("total_rss_kib") or 0), float(usage.get("max_rss_kib") or 0)) / 1024.0


def kept_digests(
    series: Series | None, records: Iterable[Record], *, steps: bool = True
) -> dict[tuple[int, int], Digest]:
    """The digests that are kept of the starts of these records, by job and generation; `steps` False: without what each
    step did."""
    by_name = {(record["job_id"], int(record.get("generation") or 0)): record for record in records}
    if series is None or not by_name:
        return {}
    kept = series.digests({job_id for job_id, _ in by_name}, steps=steps)
    found = {(one.job_id, one.generation): one for one in kept}
    return {name: one for name, one in found.items() if name in by_name and _is_of(one, by_name[name])}


def _is_of(digest: Digest, record: Record) -> bool:
    start = record.get("start_time")
    return start is not None and abs(digest.start - start) <= _SLACK_S


def live_digest(series: Series, record: Record, now: float) -> Digest | None:
    """From the curves as they are now; None: there are none, or they cannot be read."""
    start = record.get("start_time")
    if start is None:
        return None
    end = float(record.get("end_time") or now) if is_over(record) else now
    try:
        made = series.digest(record["job_id"], int(record.get("generation") or 0), float(start), max(end, float(start)))
    except SeriesError:
        return None
    return made if made.measured else None


def is_worth_a_look(record: Record, now: float) -> bool:
    """Whether its curves may have what no digest has yet."""
    return not is_over(record) or now - float(record.get("end_time") or 0.0) < FRESH_S


@dataclass(slots=True)
class Looks:
    """How many starts of one answer may still have their curves read."""

    left: int = MOST_LIVE


def digests_of(
    series: Series | None, records: Sequence[Record], now: float, looks: Looks, *, steps: bool = True
) -> dict[tuple[int, int], Digest]:
    """The digests of all these starts: kept ones, and so many as may be read live."""
    found = kept_digests(series, records, steps=steps)
    if series is None:
        return found
    for record in records:
        name = record["job_id"], int(record.get("generation") or 0)
        if name in found or not is_worth_a_look(record, now) or record.get("start_time") is None or not looks.left:
            continue
        looks.left -= 1
        made = live_digest(series, record, now)
        if made is not None:
            found[name] = made
    return found


# --- for sacct and sstat ---------------------------------------------------------------------------------------------


async def add_measured(api: Context, request: Request, records: Sequence[dict[str, Any]]) -> None:
    """To each step of these records what was measured of it, as `measured` of its usage."""
    series, now = series_of(api), api.now()
    if series is None:
        return
    found = await api.in_thread(request, digests_of, series, records, now, Looks())
    for record in records:
        digest = found.get((record["job_id"], int(record.get("generation") or 0)))
        if digest is None:
            continue
        told = measured_steps(digest)
        for step in record.get("steps") or ():
            measured = told.get(str(step["step_id"]))
            if measured is not None:
                step["usage"] = {**(step.get("usage") or {}), "measured": measured}


def measured_steps(digest: Digest) -> dict[str, dict[str, Any]]:
    """By the step's name in Slurm's language: its figures, each with least, most, total and mean."""
    return {step_label(step.step): _step_told(step) for step in digest.steps}


def _step_told(step: StepDigest) -> dict[str, Any]:
    return {name: {**all_fields(spread), "mean": spread.mean} for name, spread in step.figures.items()}
