"""What tasks use: whose processes they are, and sums that neither lose nor double anything."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bireme.gather.messages import Frame, Value
from bireme.gather.owners import OwnedTask
from bireme.gather.processes import Process
from bireme.gather.tasks import TaskSampler, _owners

_TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A /proc of made-up processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self, pid: int, parent: int, *, user_s: float = 0.0, children_s: float = 0.0, name: str = "sh", state: str = "S"
    ) -> None:
        fields = ["0"] * 40
        fields[0], fields[1] = state, str(parent)
        fields[11], fields[13] = str(int(user_s * _TICKS)), str(int(children_s * _TICKS))
        fields[17], fields[19], fields[21] = "1", str(1000 + pid), "256"
        place = self.folder / str(pid)
        place.mkdir(exist_ok=True)
        (place / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")

    def remove(self, pid: int) -> None:
        (self.folder / str(pid) / "stat").unlink()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def row(frames: list[Frame], task: OwnedTask) -> dict[str, Value]:
    frame = next(frame for frame in frames if task.id in frame.ids)
    return {name: column[frame.ids.index(task.id)] for name, column in frame.columns.items()}


FIRST = OwnedTask("n1", "7.1.0.0", pid=20, keeper=10)
SECOND = OwnedTask("n1", "7.1.0.1", pid=30, keeper=10)


def test_a_task_is_all_that_is_below_its_first_process(proc: Proc) -> None:
    proc.put(10, 1)
    proc.put(20, 10, user_s=1)
    proc.put(21, 20, user_s=2, name="a) b (c")
    proc.put(30, 10, user_s=4)
    proc.put(99, 1, user_s=100)
    frames, owner_of = TaskSampler(str(proc.folder)).frames([FIRST, SECOND])
    assert row(frames, FIRST)["cpu_user"] == 3.0
    assert row(frames, SECOND)["cpu_user"] == 4.0
    assert {pid: task.id for pid, task in owner_of.items()} == {20: "7.1.0.0", 21: "7.1.0.0", 30: "7.1.0.1"}


def test_what_a_task_used_is_told_once_more_when_it_is_over(proc: Proc) -> None:
    sampler = TaskSampler(str(proc.folder))
    proc.put(20, 10, user_s=1)
    proc.put(30, 10, user_s=4)
    sampler.frames([FIRST, SECOND])
    running, ended = sampler.frames([SECOND])[0]
    assert (running.ids, running.ended) == ([SECOND.id], False)
    assert (ended.ids, ended.ended, ended.columns["cpu_user"]) == ([FIRST.id], True, [1.0])
    assert "memory" not in ended.columns, "it has none any more"
    (running,) = sampler.frames([SECOND])[0]
    assert running.ids == [SECOND.id]


def test_orphans_of_a_step_are_its_first_tasks(proc: Proc) -> None:
    proc.put(10, 1)
    proc.put(20, 10)
    proc.put(30, 10)
    proc.put(77, 10, user_s=5)  # its parent ended: the keeper has it
    proc.put(78, 77, user_s=1)
    frames, _ = TaskSampler(str(proc.folder)).frames([SECOND, FIRST])
    assert (row(frames, FIRST)["cpu_user"], row(frames, SECOND)["cpu_user"]) == (6.0, 0.0)
    assert row(frames, FIRST)["processes"] == 3


def test_a_child_that_was_waited_for_counts_once(proc: Proc) -> None:
    sampler = TaskSampler(str(proc.folder))
    proc.put(20, 10, user_s=1)
    proc.put(21, 20, user_s=5)
    assert row(sampler.frames([FIRST])[0], FIRST)["cpu_user"] == 6.0
    proc.remove(21)
    proc.put(20, 10, user_s=1.5, children_s=5.25)
    assert row(sampler.frames([FIRST])[0], FIRST)["cpu_user"] == 6.75


def test_a_child_that_nobody_waited_for_is_not_taken_off_the_others(proc: Proc) -> None:
    sampler = TaskSampler(str(proc.folder))
    proc.put(20, 10, user_s=1)
    proc.put(21, 20, user_s=50)
    sampler.frames([FIRST])
    proc.remove(21)
    proc.put(20, 10, user_s=4)
    assert row(sampler.frames([FIRST])[0], FIRST)["cpu_user"] == 54.0


def test_a_pid_that_is_used_again_is_another_process(proc: Proc) -> None:
    sampler = TaskSampler(str(proc.folder))
    proc.put(20, 10, user_s=1)
    proc.put(21, 20, user_s=5)
    sampler.frames([FIRST])
    stat = proc.folder / "21" / "stat"
    stat.write_text(stat.read_text().replace(" 1021 ", " 9999 ").replace(f" {5 * _TICKS} ", f" {_TICKS} "))
    assert row(sampler.frames([FIRST])[0], FIRST)["cpu_user"] == 7.0


def test_what_the_kernel_does_not_tell_is_absent(proc: Proc) -> None:
    proc.put(20, 10)
    frames, _ = TaskSampler(str(proc.folder)).frames([FIRST])
    assert "io_read" not in row(frames, FIRST)
    assert "switches" not in row(frames, FIRST)


def test_dead_ones_that_wait_to_be_collected_are_no_processes(proc: Proc) -> None:
    proc.put(20, 10)
    proc.put(21, 20, state="Z")
    frames, _ = TaskSampler(str(proc.folder)).frames([FIRST])
    assert row(frames, FIRST)["processes"] == 1


def test_the_age_of_a_task_is_told_once(proc: Proc) -> None:
    """By its eldest process: since then its counters count."""
    sampler = TaskSampler(str(proc.folder))
    proc.put(20, 10)
    proc.put(21, 20)
    proc.put(30, 10)
    (frame,), _ = sampler.frames([FIRST])
    (age,) = frame.ages
    assert age == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME) - (1000 + 20) / _TICKS, abs=5.0)
    (frame,), _ = sampler.frames([FIRST, SECOND])
    assert (frame.ids, frame.ages[0]) == ([FIRST.id, SECOND.id], None)
    assert frame.ages[1] is not None
    (frame,), _ = sampler.frames([FIRST, SECOND])
    assert frame.ages == []


def test_a_task_of_which_no_process_is_found_yet_has_no_age_yet(proc: Proc) -> None:
    sampler = TaskSampler(str(proc.folder))
    (frame,), _ = sampler.frames([FIRST])
    assert frame.ages == []
    proc.put(20, 10)
    (frame,), _ = sampler.frames([FIRST])
    assert len(frame.ages) == 1


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_known_burner() -> None:
    """It says itself what it has used, and read and written, when it is done."""
    program = """
import os, time
while time.process_time() < 0.3: pass
with open("/dev/zero", "rb") as zeros: zeros.read(3 << 20)
with open("/dev/null", "wb") as null: null.write(bytes(5 << 20))
block = bytearray(64 << 20)
print("ready", flush=True)
time.sleep(600)
"""
    with running(program) as process:
        task = OwnedTask("n1", "1.1.0.0", process.pid)
        used = row(TaskSampler().frames([task])[0], task)
    cpu = (used["cpu_user"] or 0) + (used["cpu_system"] or 0)
    assert 0.28 <= cpu <= 3.0
    assert 3 << 20 <= (used["io_read"] or 0) < 9 << 20
    assert 5 << 20 <= (used["io_written"] or 0) < 6 << 20
    assert 64 <= (used["memory"] or 0) <= 200
    assert used["processes"] == 1


class Counted(dict[int, Process]):
    """A table of processes that counts how often it is asked."""

    asked = 0

    def get(self, *words: Any) -> Any:
        self.asked += 1
        return super().get(*words)


def process(pid: int, parent: int) -> Process:
    return Process(pid, parent, 0, "S", 1, 0.0, 0.0, 0, 0.0, 0.0, 0, 0)


@pytest.mark.parametrize("downwards", [True, False], ids=["parents first", "children first"])
def test_a_chain_of_thousands_of_processes_is_walked_over_once(downwards: bool) -> None:
    chain = [process(10, 1), process(20, 10), *(process(pid, pid - 1) for pid in range(21, 10_021))]
    table = Counted({each.pid: each for each in (chain if downwards else reversed(chain))})
    owners = _owners(table, {20: FIRST}, {10: FIRST})
    assert owners == dict.fromkeys(range(20, 10_021), FIRST)
    assert table.asked <= 2 * len(table)


def test_parents_that_go_in_a_circle_are_nobodys() -> None:
    table = {pid: process(pid, parent) for pid, parent in ((40, 41), (41, 42), (42, 41), (20, 10), (21, 20))}
    assert _owners(table, {20: FIRST}, {10: FIRST}) == {20: FIRST, 21: FIRST}
