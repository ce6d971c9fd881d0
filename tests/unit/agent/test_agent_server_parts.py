"""The agent's small pure parts: framing, CPU binding, records, the outbox, task prologs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.agent.devices.binding import bound_cpus, mask_text
from bireme.agent.messages import lines, protocol
from bireme.agent.messages.told import BatchEnded, Cleared, Launched
from bireme.agent.outbox import Outbox
from bireme.agent.records import NodeTakenError, TaskRecords, take_node
from bireme.agent.scripts import apply_task_prolog
from bireme.agent.tasks import worst_status
from bireme.core.model.resources import NO_USAGE, ExitStatus

frames = st.lists(st.tuples(st.integers(0, 255), st.integers(0, protocol.ALL_TASKS), st.binary(max_size=50)))


@given(frames, st.integers(1, 40))
def test_frames_survive_any_cut_of_the_stream(sent: list[tuple[int, int, bytes]], size: int) -> None:
    stream = b"".join(protocol.encode_frame(*frame) for frame in sent)
    splitter = protocol.FrameSplitter()
    received = [frame for at in range(0, len(stream), size) for frame in splitter.feed(stream[at : at + size])]
    assert received == sent


@given(st.dictionaries(st.text(), st.text()), st.integers(1, 20))
def test_lines_survive_any_cut_of_the_stream(message: dict[str, str], size: int) -> None:
    stream = lines.encode_line(message) * 2
    splitter = protocol.LineSplitter()
    pieces = [line for at in range(0, len(stream), size) for line in splitter.feed(stream[at : at + size])]
    assert [lines.decode_line(line) for line in pieces] == [message, message]


def test_bytes_that_are_no_text_travel_as_surrogates() -> None:
    value = b"caf\xe9".decode("utf-8", "surrogateescape")
    received = lines.decode_line(lines.encode_line({"V": value}))["V"]
    assert received.encode("utf-8", "surrogateescape") == b"caf\xe9"


def test_a_frame_that_claims_to_be_huge_is_refused() -> None:
    header = protocol.encode_frame(1, 0)[:5] + (protocol.MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(protocol.ProtocolError):
        protocol.FrameSplitter().feed(header)


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("", [{0, 1, 2, 3}, {0, 1, 2, 3}]),
        ("none", [None, None]),
        ("verbose,none", [None, None]),
        ("cores", [{0, 1}, {2, 3}]),
        ("v,threads", [{0, 1}, {2, 3}]),
        ("rank", [{0}, {1}]),
        ("map_cpu:3,1", [{3}, {1}]),
        ("q,map_cpu:2", [{2}, {2}]),
        ("mask_cpu:0x3,0xC", [{0, 1}, {2, 3}]),
        ("mask_cpu:0x1*2,0xC", [{0}, {0}]),
    ],
)
def test_cpu_binding(wish: str, expected: list[set[int] | None]) -> None:
    assert [bound_cpus(wish, (0, 1, 2, 3), index, 2) for index in range(2)] == expected


def test_masks_are_written_as_slurm_writes_them() -> None:
    assert mask_text(frozenset({0, 1, 5})) == "0x23"


def test_a_task_prolog_speaks_three_verbs() -> None:
    env = {"KEPT": "1", "GONE": "2"}
    printed = apply_task_prolog(b"export NEW=a b\nunset GONE\nprint hello you\nnonsense\n", env)
    assert (env, printed) == ({"KEPT": "1", "NEW": "a b"}, b"hello you\n")


# --- records and outbox ------------------------------------------------------------------------------------


def test_records_tell_the_successor_what_was_left(tmp_path: Path) -> None:
    records = TaskRecords(tmp_path / "tasks.jsonl")
    outbox = Outbox(records)
    for job in (1, 2):
        records.held((job, 1))
        records.started((job, 1), 100 + job)
    outbox.add(BatchEnded(1, 1, ExitStatus(), NO_USAGE, cleared=False))
    records.forget((2, 1), outbox.seq)
    successor = TaskRecords(tmp_path / "tasks.jsonl")
    (leftover,) = successor.leftovers
    assert leftover.key == (1, 1)
    assert [process.pid for process in leftover.processes] == [101]
    assert [(told["ev"], told["seq"]) for told in leftover.events] == [("batch_ended", 1)]
    assert (successor.epoch, successor.last_seq) == (2, 1)
    assert TaskRecords(tmp_path / "tasks.jsonl").leftovers == successor.leftovers


def test_a_torn_last_record_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    records = TaskRecords(path)
    records.held((1, 1))
    with path.open("ab") as file:
        file.write(b'{"r":"job","jo')
    assert [leftover.key for leftover in TaskRecords(path).leftovers] == [(1, 1)]


def test_acknowledged_events_leave_the_outbox(tmp_path: Path) -> None:
    outbox = Outbox(TaskRecords(tmp_path / "tasks.jsonl"))
    ended = BatchEnded(1, 1, ExitStatus(), NO_USAGE, cleared=False)
    for event in (Launched(1, 1), Launched(2, 1), ended):
        outbox.add(event)
    outbox.acknowledge_job((1, 1))
    assert [lines.decode_line(line)["job"] for line in outbox.pending()] == [2]
    assert outbox.acknowledge_through(2) == [(2, 1)]
    assert outbox.pending() == []
    assert lines.decode_line(outbox.add(Cleared(3, 1)))["seq"] == 4


def test_a_node_has_one_owner(tmp_path: Path) -> None:
    take_node(tmp_path)
    with pytest.raises(NodeTakenError):
        take_node(tmp_path)


@pytest.mark.parametrize(
    ("ends", "shown"),
    [([], (0, 0)), ([(3, 0), (5, 0)], (5, 0)), ([(5, 0), (0, 15), (0, 9)], (0, 15)), ([(0, 0), (0, 9)], (0, 9))],
)
def test_a_signal_counts_more_than_any_exit_code(ends: list[tuple[int, int]], shown: tuple[int, int]) -> None:
    worst = worst_status([ExitStatus(*end) for end in ends])
    assert (worst.code, worst.signal) == shown
