"""Where programs of a job stand: real processes, looked at by py-spy and by what the kernel says of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from bireme.evidence import standing
from bireme.evidence.stacks import py_spy

JOB = 4_000_000 + os.getpid()
"""No other job has this number."""
RANK = """
import sys
def wait_for_batch():
    sys.stdin.read()
print("on", flush=True)
wait_for_batch()
"""
SLEEPS = ("sh", "-c", "echo on; exec sleep 1000")


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """One that has said that it is there."""
    environment = {**os.environ, "SLURM_JOB_ID": str(JOB), "SLURM_STEP_ID": "0", **variables}
    child = subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    stack.callback(child.wait)
    stack.callback(child.kill)
    assert child.stdout is not None
    assert child.stdout.readline() == b"on\n"
    return child


def await_sleep(child: subprocess.Popen[bytes]) -> None:
    """Until its shell has become `sleep`, and sleeps: what it said came before that."""
    while " (sleep) S " not in Path(f"/proc/{child.pid}/stat").read_text():
        os.sched_yield()


def test_a_python_program_stands_where_its_function_waits(started: ExitStack) -> None:
    if py_spy() is None:
        pytest.skip("py-spy is not there")
    start(started, (sys.executable, "-c", RANK), {"SLURM_PROCID": "3", "SLURMD_NODENAME": "n7"})
    start(started, SLEEPS, {"SLURM_PROCID": "0", "SLURM_JOB_ID": str(JOB + 1)})
    request = json.dumps({"owner_uid": os.geteuid(), "job_id": JOB})
    words = (sys.executable, "-I", "-m", "bireme.evidence.standing")
    told = json.loads(subprocess.run(words, input=request.encode(), capture_output=True, check=True).stdout)
    if told["problems"]:
        pytest.skip(f"ptrace is not allowed here: {told['problems']}")
    (line,) = [each for each in told["lines"] if not each["order"]]
    assert "stands in wait_for_batch" in line["text"]
    assert (line["rank"], line["node"], line["source"]) == (3, "n7", "trace")


def test_without_py_spy_the_kernel_says_what_ranks_do_and_which_is_apart(
    started: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "py_spy", lambda: None)
    ranks = [start(started, SLEEPS, {"SLURM_PROCID": str(rank)}) for rank in range(3)]
    for each in ranks:
        await_sleep(each)
    start(started, SLEEPS, {"SLURM_STEP_ID": ""})
    ranks[1].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, ranks[1].pid, os.WSTOPPED | os.WNOWAIT)
    lines, problems = standing.lines_of(JOB)
    assert problems == []
    assert lines[0].text.startswith("rank 1 is stopped, unlike ranks 0,2 (sleeps")
    assert (lines[0].rank, lines[0].pid) == (1, 0)
    assert {(line.rank, line.pid) for line in lines[1:]} == {(n, each.pid) for n, each in enumerate(ranks)}


def test_nothing_is_said_of_another_users_processes_or_of_nonsense() -> None:
    words = (sys.executable, "-I", "-m", "bireme.evidence.standing")
    for request in (b"{}", b"[", json.dumps({"owner_uid": os.geteuid() + 1, "job_id": JOB}).encode()):
        done = subprocess.run(words, input=request, capture_output=True, check=False)
        assert (done.returncode, "error" in json.loads(done.stdout)) == (2, True)


def test_a_job_without_processes_here_is_a_sentence() -> None:
    assert standing.lines_of(JOB + 2) == (
        [], [f"no process of job {JOB + 2} runs on this machine that you may look at"]
    )  # fmt: skip
