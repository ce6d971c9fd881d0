"""Process trees through /proc: found, marked, killed, and never the wrong one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bireme.agent.system import processes
from bireme.agent.system.processes import ProcessIdentity


@pytest.fixture
def family() -> Iterator[tuple[int, list[int]]]:
    """A shell with a child and a grandchild, and one process that left for its own session."""
    read_fd, write_fd = os.pipe()
    script = "setsid sh -c 'echo $$ >&5; exec sleep 600' &sh -c 'echo $$ >&5; sleep 600 & echo $! >&5; wait' & wait"
    env = {"PATH": "/usr/bin:/bin", "BIREME_TEST_JOB": "42"}
    to_five = [(os.POSIX_SPAWN_DUP2, write_fd, 5)]  # a plain sh knows one-digit descriptors only
    root = os.posix_spawn("/bin/sh", ["sh", "-c", script], env, setsid=True, file_actions=to_five)
    os.close(write_fd)
    with open(read_fd, encoding="ascii") as pipe:
        members = [int(pipe.readline()) for _ in range(3)]
        yield root, members
    for pid in (root, *members):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    try:
        os.waitpid(root, 0)
    except ChildProcessError:
        return


def identity(pid: int) -> ProcessIdentity:
    found = processes.process_identity(pid)
    assert found is not None
    return found


def test_descendants_are_found_across_sessions(family):
    root, members = family
    assert processes.descendants([root]) >= set(members)
    assert root not in processes.descendants([root])
    assert root in processes.descendants([os.getpid()])


def test_kill_tree_leaves_nothing(family):
    root, members = family
    everyone = [identity(pid) for pid in (root, *members)]
    assert processes.kill_tree([everyone[0]])
    os.waitpid(root, 0)
    assert [process for process in everyone if processes.is_alive(process)] == []


def test_recycled_pid_is_never_signalled(family):
    root, _ = family
    stranger = replace(identity(root), start_ticks=identity(root).start_ticks - 1)
    other_boot = replace(identity(root), boot_id="another")
    for process in (stranger, other_boot):
        assert not processes.is_alive(process)
        assert not processes.send_signal(process, signal.SIGKILL)
        assert processes.kill_tree([process])
    assert processes.is_alive(identity(root))


def test_signal_tree_reaches_everyone_once(family):
    root, members = family
    assert processes.signal_tree([identity(root)], signal.SIGCONT) >= 1 + len(members)


def test_marker_finds_what_an_earlier_agent_left(family):
    root, members = family
    found = {stray.process.pid: stray.marker for stray in processes.find_marked("BIREME_TEST_JOB", "42")}
    assert {root, *members} <= set(found)
    assert set(found.values()) == {"42"}
    assert processes.find_marked("BIREME_TEST_JOB", "43") == []


def test_all_below_a_process_is_found_and_nothing_beside_it(family):
    root, members = family
    assert {process.pid for process in processes.living_below([root])} == set(members)
    with pytest.raises(AssertionError, match="whole machine"):
        processes.living_below([1])


def test_own_children_are_children_only(family):
    root, members = family
    assert root in processes.own_children()
    assert not processes.own_children() & set(members)


def test_own_children_by_the_kernels_list_and_without_it(family, monkeypatch):
    root, _ = family
    monkeypatch.setattr(processes, "_children_of_thread", lambda thread: [root])
    assert processes.own_children() == {root}

    def unknown_file(thread: str) -> list[int]:
        raise FileNotFoundError

    monkeypatch.setattr(processes, "_children_of_thread", unknown_file)
    assert root in processes.own_children()


def test_the_dead_are_not_alive():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    process = identity(pid)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert not processes.is_alive(process), "a zombie has ended"
    os.waitpid(pid, 0)
    assert processes.process_identity(pid) is None
    assert processes.environment_value(pid, "PATH") is None


def test_command_names_cannot_break_the_parser(tmp_path):
    nasty = tmp_path / ") R 1 (x"
    nasty.symlink_to("/bin/sleep")
    pid = os.posix_spawn(str(nasty), [str(nasty), "600"], {})
    try:
        entry = processes.read_process(pid)
        assert entry is not None
        assert entry.ppid == os.getpid()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_samples_are_of_the_living(family):
    usage = processes.sample_usage([os.getpid(), 2**22 + 1])
    assert usage.max_rss_kib > 1000
    assert usage.max_vsize_kib > usage.max_rss_kib
    assert usage.cpu_s > 0
    assert usage.read_bytes > 0
    assert processes.sample_usage([2**22 + 1]).max_rss_kib == 0
