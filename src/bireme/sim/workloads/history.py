"""Bireme's own history as a workload: the records that `sacct` shows, as the API and the store give them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bireme.sim.workloads.trace import Row, TraceJob

Record = dict[str, Any]


def rows(records: Iterable[Record]) -> Iterator[Row]:
    """The number of a row is its job's id."""
    for record in records:
        yield record["job_id"], _job(record)


def _job(record: Record) -> TraceJob | str:
    start, end = record.get("start_time"), record.get("end_time")
    if start is None or end is None:
        return f"it never ran ({record['state']})"
    tres: dict[str, int] = record.get("tres_allocated") or {}
    nodes = max(1, tres.get("node", 1))
    memory = tres.get("mem", 0)
    return TraceJob(
        submit=record["submit_time"],
        run_s=max(1.0, end - start - (record.get("suspended_s") or 0.0)),
        nodes=nodes,
        cpus=tres.get("cpu") or None,
        gpus=tres.get("gres/gpu", 0),
        gpu_types=tuple(name.removeprefix("gres/gpu:") for name in tres if name.startswith("gres/gpu:")),
        memory_mib=-(-memory // nodes) if memory else None,
        limit_s=record.get("time_limit_s"),
        user=record["user_name"],
        account=record.get("account") or "",
        partition=record["partition"],
        qos=record.get("qos") or "",
        name=record["name"],
        exit_code=0 if record["state"] == "COMPLETED" else 1,
        waited_s=max(0.0, start - record["submit_time"]),
        line=record["job_id"],
    )
