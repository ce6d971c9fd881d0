"""Flight recorders' dumps: who did not arrive, who does something else; and no pickle ever runs anything."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.core.diagnosis.judging import judge
from bireme.evidence import traces
from bireme.evidence.reading import Output, Reader
from bireme.evidence.rulebook import load
from bireme.evidence.searching import Searcher

WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def entry(number: int, name: str = "all_reduce", state: str = "completed", **more: Any) -> dict[str, Any]:
    """As version 2.x writes it."""
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": 71}],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1_720_000_000_000_000_000 + number,
        "input_sizes": [[1024]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024]],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **more,
    }


def dump(*entries: dict[str, Any], version: str = "2.4", config: Any = WORLD, done: int = 0) -> dict[str, Any]:
    status = {"0": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": done}}
    return {"version": version, "pg_config": config, "pg_status": status if done else {}, "entries": list(entries)}


def written(folder: Path, *dumps: Any, as_json: bool = False) -> list[str]:
    """One file a rank; None: that rank left none."""
    for rank, each in enumerate(dumps):
        path = folder / f"nccl_trace_rank_{rank}"
        if each is not None:
            path.write_bytes(json.dumps(each).encode() if as_json else pickle.dumps(each, protocol=2))
    read = []
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as file:
            read.append(traces.read(file, str(path)))
    return [line.text for line in traces.lines_of(read)]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_that_did_not_arrive(tmp_path: Path, as_json: bool) -> None:
    there = dump(entry(6), entry(7, state="started"))
    assert written(tmp_path, there, there, dump(entry(5, "broadcast"), entry(6)), there, as_json=as_json) == [
        "rank 2 did not join collective 7 (all_reduce), which ranks 0-1,3 started; its last was 6 (all_reduce)"
    ]


def test_a_rank_that_left_no_dump(tmp_path: Path) -> None:
    there = dump(entry(6), entry(7, "broadcast", "scheduled"))
    assert written(tmp_path, there, None, there, there) == [
        "rank 1 left no dump, and ranks 0,2-3 wait for it in collective 7 (broadcast)"
    ]


def test_ranks_that_call_different_collectives(tmp_path: Path) -> None:
    there = dump(entry(6), entry(7, state="started"))
    other = dump(entry(6), entry(7, "all_gather", "started"), entry(8, state="scheduled"))
    assert written(tmp_path, there, there, other, there) == [
        "rank 2 calls all_gather where ranks 0-1,3 call all_reduce at collective 7"
    ]


def test_ranks_that_give_different_sizes(tmp_path: Path) -> None:
    there, other = dump(entry(7, state="started")), dump(entry(7, state="started", input_sizes=[[512]]))
    assert written(tmp_path, there, there, there, other) == [
        "rank 3 gives collective 7 (all_reduce) sizes [[512]] where ranks 0-2 give [[1024]]"
    ]


def test_sizes_may_differ_where_they_may(tmp_path: Path) -> None:
    there, other = dump(entry(7, "all_to_all")), dump(entry(7, "all_to_all", input_sizes=[[512]]))
    assert written(tmp_path, there, other, there, there) == []


def test_all_arrived_and_it_did_not_finish(tmp_path: Path) -> None:
    there = dump(entry(7, state="started"))
    assert written(tmp_path, there, there, there, there) == [
        "collective 7 (all_reduce) was started by all of ranks 0-3 and did not finish"
    ]


def test_all_is_well(tmp_path: Path) -> None:
    assert written(tmp_path, *[dump(entry(6), entry(7))] * 4) == []


def test_what_the_ring_has_lost_is_known_from_the_status(tmp_path: Path) -> None:
    """Only what is active was dumped: a rank that completed 7 is not one that never joined it."""
    there = dump(entry(8, state="started"), done=7)
    assert written(tmp_path, there, there, dump(entry(7), done=7), there) == [
        "rank 2 did not join collective 8 (all_reduce), which ranks 0-1,3 started; its last was 7 (all_reduce)"
    ]


def test_another_group_is_named_and_has_its_own_members(tmp_path: Path) -> None:
    config = {**WORLD, "5": {"name": "5", "desc": "tp", "ranks": "[2, 3]"}}
    inside = dump(entry(1, state="started", process_group=("5", "tp"), pg_id=1), config=config)
    outside = dump(entry(6), config=config)
    assert written(tmp_path, outside, outside, inside, outside) == [
        "rank 3 did not join collective 1 (all_reduce) of group tp (5), which rank 2 started"
    ]


def test_the_oldest_form_is_a_list_with_other_names(tmp_path: Path) -> None:
    def old(number: int, state: str) -> dict[str, Any]:
        return {"id": number, "pg_id": 0, "seq_id": number, "profiling_name": "nccl:all_reduce", "state": state,
                "input_sizes": [[8]], "output_sizes": [[8]], "frames": []}  # fmt: skip

    there = [old(1, "completed"), old(2, "started")]
    assert written(tmp_path, there, there, [old(1, "completed")]) == [
        "rank 2 did not join collective 2 (all_reduce) of group 0, which ranks 0-1 started; its last was 1 (all_reduce)"
    ]


def test_sends_and_receives_are_no_collectives(tmp_path: Path) -> None:
    there = dump(entry(7), entry(7, "send 1->2", "started", is_p2p=True))
    assert written(tmp_path, there, there, dump(entry(7)), there) == []


def test_a_dump_comes_to_a_diagnosis(tmp_path: Path) -> None:
    there = dump(entry(6), entry(7, state="started"))
    written(tmp_path, there, there, dump(entry(6)), there)
    book = load().book()
    with Searcher(book) as searcher:
        found = Reader(searcher).read([Output(path=str(tmp_path))])
    diagnosis = judge(found.clues, book.causes)
    assert (diagnosis.cause.id, diagnosis.confidence) == ("nccl_timeout", "medium")
    assert diagnosis.summary == "Rank 2 did not join collective 7 (all_reduce), for which ranks 0-1,3 waited."
    assert diagnosis.evidence[0].rank == 2


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"entries": [Bomb()]}),
        b"\x80\x02cposix\nsystem\nq\x00X\x04\x00\x00\x00true\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02r\xff\xff\xff\x7f.",  # a memo of thirty gigabytes
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x02(((.",
        b"\x80\x02]q\x00h\x00a.",  # a list in itself
        b"\x80\x02P1\n.",
        pickle.dumps("text"),
        pickle.dumps({"a": 1}),
        pickle.dumps({"entries": {"a": 1}}),
        pickle.dumps([[[[]]]]),
    ],
)
def test_a_pickle_runs_nothing_and_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    with open(path, "rb") as file, pytest.raises(traces.NoDumpError):
        traces.read(file, str(path))
    assert os.listdir(tmp_path) == [path.name]


def test_lists_that_hold_each_other_cost_nothing(tmp_path: Path) -> None:
    """Eight hundred bytes, and 10^30 elements for who writes them out."""
    nested: Any = [0] * 10
    for _ in range(30):
        nested = [nested] * 10
    entry = {
        "profiling_name": nested,
        "collective_seq_id": nested,
        "process_group": nested,
        "state": nested,
        "input_sizes": nested,
    }
    named = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "state": nested, "input_sizes": nested}
    dumped = {"entries": [entry, {**named, "process_group": nested}], "pg_config": {"0": {"ranks": nested}}}
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dumped))
    with open(path, "rb") as file:
        traces.read(file, str(path))


NAMES = ("entries", "pg_config", "pg_status", "profiling_name", "collective_seq_id", "process_group", "state", "0")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(ANYTHING)
def test_anything_may_be_in_it(value: Any) -> None:
    try:
        made = traces._dump_of(value, traces.Dump(0, "a"))
    except traces.NoDumpError:
        return
    traces.lines_of([made, traces.Dump(1, "b", groups={"": {1: traces.Call("all_reduce", "started", "")}})])
