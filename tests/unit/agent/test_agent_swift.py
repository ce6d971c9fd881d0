"""Programs that are started swiftly: which are, what they find, and what is left to the exact way.

That the ways mean the same is in `test_agent_spawn`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.agent.starting import swift
from bireme.agent.starting.own_pid import elf_of, own_pid_program
from bireme.agent.starting.spawn import Birth, TaskFile, close_on_exec_from_here
from bireme.agent.starting.swift import spawn_swiftly
from bireme.agent.system.identity import Identity

ENV = {"PATH": "/usr/bin:/bin"}
STDIN = TaskFile("stdin", "/dev/null", "read")


class Out:
    """A program's output, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream = TaskFile("stdout", str(path), "truncate")

    def birth(self, *argv: str, **options: Any) -> Birth:
        return Birth(
            **{"argv": argv, "env": ENV, "stdin": STDIN, "stdout": self.stream, "stderr": self.stream, **options}
        )

    def of(self, *argv: str, **options: Any) -> list[str]:
        pid = spawn_swiftly(self.birth(*argv, **options))
        assert pid is not None, "it is one that can be started swiftly"
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, self.path.read_text()
        return [str(pid), *self.path.read_text().splitlines()]


@pytest.fixture
def out(tmp_path: Path) -> Out:
    return Out(tmp_path / "out")


@pytest.fixture(params=["program", "shell"])
def teller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What tells a program its pid."""
    if request.param == "shell":
        monkeypatch.setattr(swift, "own_pid_program", lambda: None)
    return str(request.param)


def test_a_program_knows_its_pid_and_finds_all_else_as_it_was_given(out: Out, teller: str) -> None:
    env = {**ENV, "PWD": "/somewhere else", "EMPTY": "", "LINES": "a\nb"}
    given = {**env, "SLURM_TASK_PID": "of the task that started it"}
    pid, *told = out.of("/usr/bin/env", "-0", env=given, cwd="/tmp", pid_variable="SLURM_TASK_PID")
    assert sorted("\n".join(told).split("\0")) == sorted(
        ["", *(f"{name}={value}" for name, value in env.items()), f"SLURM_TASK_PID={pid}"]
    )


@pytest.mark.skipif(own_pid_program() is None, reason="no program for this machine tells a pid")
def test_what_no_shell_hands_on_is_found_where_none_is_between(out: Out) -> None:
    odd = {"BASH_FUNC_f%%": "() { :; }", "a b": "c"}
    pid, told = out.of("env", "-0", env=odd, pid_variable="PID")
    assert told.split("\0") == [f"PID={pid}", "BASH_FUNC_f%%=() { :; }", "a b=c", ""]


def test_a_program_that_cannot_be_executed_after_all_says_so(out: Out, tmp_path: Path, teller: str) -> None:
    """Its caller was sure of it."""
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF and nothing else")
    program.chmod(0o700)
    pid = spawn_swiftly(out.birth(str(program), pid_variable="PID", sure=True))
    assert pid is not None
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in {errno.ENOEXEC, 126, 127}
    assert out.path.read_text()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_program_that_tells_pids_is_a_whole_file(machine: str, tmp_path: Path) -> None:
    """As one who knows such files reads it: a header, a segment that is as long as the file, its entry within it."""
    program = elf_of(machine)
    assert program is not None
    entry, segments = struct.unpack_from("<QQ", program, 24)
    _, flags, offset, address, _, in_file, in_memory, _ = struct.unpack_from("<IIQQQQQQ", program, segments)
    assert (flags, offset, in_file, in_memory) == (5, 0, len(program), len(program)), "read, execute, not write"
    assert address < entry < address + len(program)
    assert program.endswith(b"could not be executed\n")


def test_there_is_none_for_another_machine() -> None:
    assert elf_of("vax") is None


def test_a_program_of_the_path_is_called_by_its_own_name(out: Out, teller: str) -> None:
    _, argv = out.of("sh", "-c", 'tr "\\0" "|" < /proc/$$/cmdline; :', pid_variable="PID")
    assert argv.startswith("sh|-c|")


def test_a_program_has_no_descriptor_but_its_own(out: Out, teller: str) -> None:
    close_on_exec_from_here()
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    _, *told = out.of("sh", "-c", "ls /proc/$$/fd; :", extra_fds={9: write_fd}, pid_variable="PID")
    os.close(read_fd)
    os.close(write_fd)
    assert told == ["0", "1", "2", "9"]


def test_streams_may_be_descriptors(out: Out) -> None:
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    pid = spawn_swiftly(out.birth("sh", "-c", "echo out; echo err >&2", stdout=write_fd))
    os.close(write_fd)
    assert pid is not None
    os.waitpid(pid, 0)
    assert (os.read(read_fd, 100), out.path.read_text()) == (b"out\n", "err\n")
    os.close(read_fd)


def test_what_is_sure_to_start_is_not_looked_at(out: Out, tmp_path: Path) -> None:
    """Its agent wrote it a moment ago; whoever holds it up since then holds up the process that becomes it."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o700)
    lease = os.open(script, os.O_RDWR)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    assert spawn_swiftly(out.birth(str(script), pid_variable="PID")) is None
    pid = spawn_swiftly(out.birth(str(script), pid_variable="PID", sure=True))
    os.close(lease)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    assert pid is not None
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert out.path.read_text() == "ran\n"


def unsuitable(out: Out, tmp_path: Path) -> Iterator[tuple[str, Birth]]:
    """Whatever a swift start would do otherwise, or would be held up by."""
    fifo, program, script = tmp_path / "fifo", tmp_path / "program", tmp_path / "script"
    os.mkfifo(fifo)
    yield "reads what nobody writes yet", out.birth("true", stdin=TaskFile("stdin", str(fifo), "read"))
    yield "writes to what nobody reads yet", out.birth("true", stdout=TaskFile("stdout", str(fifo), "append"))
    yield "another user", out.birth("true", identity=Identity(65534, 65534, ()))
    yield "a limit", out.birth("true", rlimits={0: (1, 1)})
    yield "niceness", out.birth("true", nice=3)
    yield "a cgroup", out.birth("true", join_files=["/dev/null"])
    yield "a greeting", out.birth("true", greeting=b"hello")
    yield "no program", out.birth("/nonexistent")
    yield "no directory", out.birth("true", cwd="/nonexistent")
    yield "a CPU that is not there", out.birth("true", cpu_ids=frozenset({1000}))
    yield "a NUL byte", out.birth("true", "\0")
    yield "no such program in PATH", out.birth("-c")
    missing = TaskFile("stdout", str(tmp_path / "17" / "out"), "truncate")
    yield "a folder that others make", out.birth("true", stdout=missing, folder_patience_s=1.0)
    for text in ("echo no interpreter", "#!/nonexistent", "#! relative", f"#!{script}"):
        script.write_text(text)
        script.chmod(0o700)
        yield text, out.birth(str(script))
    elf = Path("/bin/true").read_bytes()
    program.write_bytes(elf[:18] + b"\xff\xff" + elf[20:])
    program.chmod(0o700)
    yield "a program of another machine", out.birth(str(program))
    program.write_bytes(elf)
    lease = os.open(program, os.O_RDWR)
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which its holder hears that somebody wants the file
    fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    yield "a lease on the program", out.birth(str(program))
    os.close(lease)
    signal.signal(signal.SIGIO, signal.SIG_DFL)


def test_what_may_fail_or_wait_takes_the_exact_way(out: Out, tmp_path: Path) -> None:
    state = os.getcwd(), os.sched_getaffinity(0), sorted(os.listdir("/proc/self/fd"))
    for why, birth in unsuitable(out, tmp_path):
        assert spawn_swiftly(birth) is None, why
    assert (os.getcwd(), os.sched_getaffinity(0), sorted(os.listdir("/proc/self/fd"))) == state


def test_what_a_shell_would_change_takes_the_exact_way_where_one_is_between(
    out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swift, "own_pid_program", lambda: None)
    for why, birth in (
        ("bash's functions", out.birth("true", env={**ENV, "BASH_FUNC_f%%": "() { :; }"}, pid_variable="PID")),
        ("no PATH", out.birth("true", env={}, pid_variable="PID")),
        ("an option of the shell's", out.birth("-c", pid_variable="PID")),
    ):
        assert spawn_swiftly(birth) is None, why


def test_what_cannot_be_laid_down_starts_nothing_twice(
    out: Out, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = os.sched_getaffinity(0)
    calls: list[set[int]] = []

    def bind_once(_pid: int, cpus: set[int]) -> None:
        calls.append(set(cpus))
        if len(calls) == 2:
            raise OSError(errno.EINVAL, "these CPUs were taken away")

    umask = os.umask(0o22)
    monkeypatch.setattr(os, "sched_setaffinity", bind_once)
    _, said = out.of("echo", "once", cpu_ids=frozenset(own), umask=0o77)
    assert said == "once"
    assert len(calls) == 2
    assert "these CPUs were taken away" in caplog.text
    assert os.umask(umask) == 0o22, "the rest is laid down all the same"
