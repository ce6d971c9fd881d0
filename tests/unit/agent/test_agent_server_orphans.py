"""Who was left behind by a task, told from looking at each new pid once."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from bireme.agent import orphans
from bireme.agent.orphans import OrphanWatch

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a task as the agent does: a session leader with its job's marker; prints its children's pids."""
    tasks: list[subprocess.Popen[str]] = []

    def start_one(script: str) -> subprocess.Popen[str]:
        task = subprocess.Popen(
            ["bash", "-c", script],
            env={"PATH": "/usr/bin:/bin", "BIREME_JOB": "7.1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        tasks.append(task)
        return task

    yield start_one
    for task in tasks:
        task.communicate()


def answer_of(task: subprocess.Popen[str]) -> str:
    assert task.stdout is not None
    return task.stdout.readline().strip()


@pytest.mark.parametrize("how", ["", "setsid"])
def test_a_living_child_is_found_in_its_session_or_out_of_it(start: Start, how: str) -> None:
    watch = OrphanWatch("BIREME_JOB")
    task = start(f"{how} sleep 1000 & echo $!; read; kill $!; wait; echo; read")
    watch.started(task.pid)
    answer_of(task)
    assert watch.left_something(task.pid, "7.1") is True
    assert task.stdin is not None
    task.stdin.write("\n")
    task.stdin.flush()
    answer_of(task)
    assert watch.left_something(task.pid, "7.1") is False


def test_processes_of_others_are_not_this_tasks(start: Start) -> None:
    watch = OrphanWatch("BIREME_JOB")
    task, other = start("echo; read"), start("sleep 1000 & echo; read; kill $!")
    watch.started(task.pid)
    watch.started(other.pid)
    answer_of(task)
    answer_of(other)
    assert watch.left_something(task.pid, "7.1") is False
    assert watch.left_something(other.pid, "7.1") is True


def test_a_survivor_of_a_task_stays_its_jobs(start: Start) -> None:
    watch = OrphanWatch("BIREME_JOB")
    step, batch = start("setsid sleep 1000 & echo; read; kill $!"), start("echo; read")
    for task in (step, batch):
        watch.started(task.pid)
        answer_of(task)
    assert watch.left_something(batch.pid, "7.1") is False
    watch.task_ended(step.pid, "7.1")
    assert watch.left_something(batch.pid, "7.1") is True
    watch.job_ended("7.1")
    assert watch.left_something(batch.pid, "7.1") is False


def test_after_a_long_pause_it_does_not_pretend_to_know(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = OrphanWatch("BIREME_JOB")
    task = start("echo; read")
    watch.started(task.pid)
    answer_of(task)
    with monkeypatch.context() as patch:
        patch.setattr(orphans, "FRESH_S", 0.0)
        assert watch.left_something(task.pid, "7.1") is None
    assert watch.left_something(task.pid, "7.1") is None  # what it missed, it missed
    later = start("echo; read")
    watch.started(later.pid)
    answer_of(later)
    assert watch.left_something(later.pid, "7.1") is False


def test_pids_that_start_over_are_still_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.listdir", lambda _path: ["1", "5", "32760", "32000", "40", "self"])
    assert list(orphans._pids_between(32700, 10)) == [32760, 1, 5]
    assert list(orphans._pids_between(10, 13)) == [11, 12, 13]
