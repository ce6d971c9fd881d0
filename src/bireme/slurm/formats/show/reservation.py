"""`scontrol show reservation` and `sinfo -T`, in Slurm's order and spacing."""

from __future__ import annotations

from collections.abc import Sequence

from bireme.slurm.formats.values import Context, Record, long_duration, or_null, tres_text

_HEADER = ("RESV_NAME", "STATE", "START_TIME", "END_TIME", "DURATION", "NODELIST")


def reservation_block(record: Record, context: Context) -> list[str]:
    delay = record.get("max_start_delay_s")
    return [
        f"ReservationName={record['name']} StartTime={context.stamp(record['start_time'])} "
        f"EndTime={context.stamp(record['end_time'])} Duration={long_duration(record['duration_s'])}",
        f"Nodes={or_null(record['node_list'])} NodeCnt={record['node_count']} CoreCnt={record['core_count']} "
        f"Features={or_null(record['features'])} PartitionName={or_null(record['partition'])} "
        f"Flags={','.join(_flags(record))}",
        f"TRES={or_null(tres_text(record['tres'], context))}",
        f"Users={_names(record['users'])} Groups={_names(record['groups'])} Accounts={_names(record['accounts'])} "
        f"Licenses=(null) State={record['state']} BurstBuffer=(null) Watts=n/a",
        f"MaxStartDelay={or_null(long_duration(delay) if delay else '')}",
    ]


def _names(names: Sequence[str]) -> str:
    return or_null(",".join(names))


def _flags(record: Record) -> list[str]:
    purge = record.get("purge_after_s")
    return [
        f"{flag}={long_duration(purge)}" if flag == "PURGE_COMP" and purge is not None else flag
        for flag in record["flags"]
    ]


def reservation_lines(records: Sequence[Record], context: Context, *, header: bool = True) -> list[str]:
    """sinfo -T: the name's column is as wide as the longest name."""
    width = max([len(_HEADER[0]), *(len(record["name"]) for record in records)])
    rows = [_HEADER] if header else []
    rows += [
        (
            record["name"],
            record["state"],
            context.stamp(record["start_time"]),
            context.stamp(record["end_time"]),
            long_duration(record["duration_s"]),
            record["node_list"],
        )
        for record in records
    ]
    return [
        f"{name:<{width}}  {state:>8}  {start:>19}  {end:>19}  {duration:>11}  {nodes}"
        for name, state, start, end, duration, nodes in rows
    ]
