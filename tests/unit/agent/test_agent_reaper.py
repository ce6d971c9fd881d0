"""Collecting ended children: their status, what they used, and orphans that came back."""

from __future__ import annotations

import os
import signal

from bireme.agent.system.reaper import ExitStatus, become_subreaper, reap_exited
from bireme.agent.system.usage import TaskUsage


def start(*argv: str) -> int:
    return os.posix_spawn(argv[0], argv, {"PATH": "/usr/bin:/bin"})


def wait_until_ended(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def reaped(*pids: int) -> dict[int, ExitStatus]:
    """Of these: other tests of the same process may have left children behind."""
    return {child.pid: child.status for child in reap_exited() if child.pid in pids}


def test_exit_code_and_signal_are_told_apart():
    failing, killed = start("/bin/sh", "-c", "exit 7"), start("/bin/sleep", "60")
    os.kill(killed, signal.SIGTERM)
    wait_until_ended(failing)
    wait_until_ended(killed)
    statuses = reaped(failing, killed)
    assert statuses == {failing: ExitStatus(7), killed: ExitStatus(0, signal=signal.SIGTERM)}
    assert [str(statuses[failing]), str(statuses[killed])] == ["7:0", "0:15"]


def test_running_children_are_left_alone():
    sleeper = start("/bin/sleep", "60")
    try:
        assert reaped(sleeper) == {}
    finally:
        os.kill(sleeper, signal.SIGKILL)
    wait_until_ended(sleeper)
    assert reaped(sleeper) == {sleeper: ExitStatus(0, signal=signal.SIGKILL)}
    assert reaped(sleeper) == {}


def test_usage_is_the_kernels():
    pid = start("/usr/bin/env", "python3", "-S", "-c", "x = bytearray(50 << 20); sum(range(2_000_000))")
    wait_until_ended(pid)
    (child,) = (child for child in reap_exited() if child.pid == pid)
    assert child.usage.max_rss_kib > 50 << 10
    assert child.usage.user_cpu_s > 0


def test_status_word_round_trips():
    for status in (0, 3 << 8, 9, 11 | 0x80):
        assert ExitStatus.from_wait(status).as_wait_status() == status
    assert ExitStatus.from_wait(0).ok
    assert ExitStatus.from_wait(11 | 0x80).core


def test_orphans_come_back_to_a_subreaper():
    """In a process of its own: being a subreaper cannot be a test run's lasting state."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            assert become_subreaper()
            start("/bin/sh", "-c", "sh -c 'exit 5' & exit 3")
            codes = set()
            while len(codes) < 2:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                codes |= {child.status.code for child in reap_exited()}
            os.write(write_fd, str(sorted(codes)).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        assert pipe.read() == b"[3, 5]"
    os.waitpid(pid, 0)


def test_usage_adds_times_and_keeps_peaks():
    one, two = TaskUsage(1.0, 0.5, 100, 10, 5, 6, 1), TaskUsage(2.0, 0.25, 80, 20, 1, 1, 0)
    assert one.plus(two) == TaskUsage(3.0, 0.75, 100, 20, 6, 7, 1)
    assert one.peak_with(two) == TaskUsage(2.0, 0.5, 100, 20, 5, 6, 1)
    assert one.cpu_s == 1.5
