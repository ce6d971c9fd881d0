"""Keepers: what they are told arrives whole, they are used again only when empty, and their death frees nobody."""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import resource
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bireme.agent.boxes.blueprint import Blueprint, Entrance, Mount, Part
from bireme.agent.confining.tracking import LINUXPROC, PGID, Tracking
from bireme.agent.keeping import keepers, regrouped
from bireme.agent.keeping.keeper_words import Spawn, ordered_birth, read_order, spawn_order
from bireme.agent.keeping.keepers import Keeper, KeeperPool, signal_below
from bireme.agent.keeping.launching import Launching
from bireme.agent.messages.lines import encode_typed
from bireme.agent.messages.protocol import ProtocolError
from bireme.agent.starting.spawn import Birth, SpawnError, TaskFile
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import READ, Loop
from bireme.agent.system.processes import read_process, send_signal
from bireme.agent.system.reaper import ReapedChild, become_subreaper, reap_exited
from bireme.agent.tasks import Task

PR_SET_CHILD_SUBREAPER = 36
WHOLE = Birth(
    argv=["a", "b\udcff"],
    env={"NAME": "val\nue"},
    stdin=7,
    stdout=TaskFile("stdout", "/out", "append"),
    stderr=8,
    cwd="/work",
    identity=Identity(1, 2, (3, 4)),
    umask=0o27,
    rlimits={7: (1, 2)},
    cpu_ids=frozenset({0, 3}),
    nice=5,
    new_session=False,
    controlling_tty=True,
    extra_fds={3: 9},
    join_files=["/sys/a"],
    pid_variable="PID",
    greeting=b"\x00\xff",
    notice="note",
    folder_patience_s=1.5,
    sure=True,
    entrance=Entrance(fds=(20, 21, 22), remap_root=True),
    blueprint=Blueprint(root="/r", mounts=(Mount("/a", "/b", ("ro",)),), parts=(Part("/p", "/q", read_only=True),)),
)


def test_all_of_a_birth_travels() -> None:
    plain = Birth(argv=(), env={}, stdin=0, stdout=0, stderr=0)
    unset = [name for name in Birth.__struct_fields__ if getattr(WHOLE, name) == getattr(plain, name)]
    assert not unset, f"this test sets every field; give {unset} a value that differs from its default"
    sent, fds = spawn_order(WHOLE, by_shell=True)
    assert fds == [7, 8, 9]
    heard = read_order(encode_typed(sent))
    assert isinstance(heard, Spawn)
    assert (heard.fds, heard.by_shell, ordered_birth(heard, fds)) == (3, True, WHOLE)
    assert ordered_birth(heard, [21, 22, 23]).streams == (21, WHOLE.stdout, 22)


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"{",
        b"\xff",
        b'{"type":"dance"}',
        b'{"type":"spawn","fds":0,"by_shell":true}',
        b'{"type":"spawn","fds":"0","by_shell":true,"birth":{"argv":["a"],"env":{},"stdin":0,"stdout":0,"stderr":0}}',
    ],
)
def test_what_is_no_order_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_order(line)


def is_gone(pid: int) -> bool:
    entry = read_process(pid)
    return entry is None or entry.is_dead


class Run:
    """An agent's loop with one keeper, in this process."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.pool = KeeperPool(loop, Tracking.open("unused", LINUXPROC))
        self.ended: list[ReapedChild] = []
        self.problems: list[SpawnError] = []

    def start(
        self,
        keeper: Keeper,
        script: str,
        output: str | Path = os.devnull,
        process: Callable[[int], None] = lambda _pid: None,
        **env: str,
    ) -> None:
        null, stdout = os.open(os.devnull, os.O_RDWR), os.open(output, os.O_RDWR | os.O_CREAT)
        env = {"PATH": os.environ["PATH"], **env}
        birth = Birth(argv=["/bin/sh", "-c", script], env=env, stdin=null, stdout=stdout, stderr=2)
        Launching(
            self.loop,
            birth,
            process=process,
            started=lambda problem: self.problems.append(problem) if problem else None,
            exited=self.ended.append,
            keeper=keeper,
        ).begin()
        os.close(null)
        os.close(stdout)

    def until(self, is_so: Callable[[], object]) -> None:
        """Turns of the loop until then."""

        def look() -> None:
            if is_so():
                self.loop.stop()
            else:
                self.loop.call_later(0.01, look)

        self.loop.call_later(0, look)
        self.loop.run()


@pytest.fixture
def run() -> Iterator[Run]:
    become_subreaper()
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)}
    run = Run(Loop())
    yield run
    run.pool.close()
    reap_exited()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)  # later tests' orphans are none of this process's
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_keeper_is_used_again_when_nothing_is_left(run: Run) -> None:
    keeper = run.pool.take()
    run.start(keeper, "exit 3")
    assert not keeper.empty, "from the order on"
    run.until(lambda: keeper.empty and run.ended)
    assert run.ended[0].status.code == 3
    run.pool.give_back(keeper)
    assert run.pool.take() is keeper


def test_a_keeper_is_empty_when_the_last_orphan_is_gone(run: Run, tmp_path: Path) -> None:
    keeper = run.pool.take()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    run.start(keeper, f"(exec setsid env -i sh -c 'read x < {gate}') &")
    run.until(lambda: run.ended)
    assert not keeper.empty
    with pytest.raises(AssertionError, match="nothing is left"):
        run.pool.give_back(keeper)
    gate.write_text("go\n")
    run.until(lambda: keeper.empty)


def test_what_a_killed_keeper_held_is_ended(run: Run, tmp_path: Path) -> None:
    keeper = run.pool.take()
    run.start(keeper, f"(setsid env -i sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000') & sleep 1000")
    run.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    hidden = int((tmp_path / "pid").read_text())
    os.kill(keeper.pid, signal.SIGKILL)
    run.until(lambda: keeper.empty and run.ended)
    assert is_gone(hidden)
    assert run.ended[0].status.signal == signal.SIGKILL
    assert run.pool.take() is not keeper


def test_an_agent_that_goes_leaves_nothing_behind(run: Run, tmp_path: Path) -> None:
    keeper = run.pool.take()
    run.start(keeper, f"trap '' TERM; setsid env -i sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000'")
    run.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    hidden = int((tmp_path / "pid").read_text())
    run.pool.close()
    assert is_gone(hidden)


def test_a_signal_reaches_what_is_still_to_be_started_and_reaches_it_once(run: Run, tmp_path: Path) -> None:
    keeper = run.pool.take()
    os.kill(keeper.pid, signal.SIGSTOP)  # as slow as it can be
    run.start(keeper, "exec sleep 1000")
    assert signal_below([keeper], signal.SIGTERM) == set()
    os.kill(keeper.pid, signal.SIGCONT)
    run.until(lambda: run.ended)
    assert run.ended[0].status.signal == signal.SIGTERM

    told = tmp_path / "told"
    run.start(keeper, f"trap 'echo told >> {told}' USR1; touch {told}; while :; do sleep 0.01; done")
    while not told.exists():  # it runs, and its keeper's answer was not read yet
        pass
    reached = signal_below([keeper], signal.SIGUSR1)
    run.until(lambda: told.read_text())
    assert reached
    signal_below([keeper], signal.SIGKILL)
    run.until(lambda: keeper.empty)
    assert told.read_text() == "told\n"


def test_what_cannot_be_started_is_told(run: Run) -> None:
    keeper = run.pool.take()
    birth = Birth(argv=["/nonexistent"], env={}, stdin=0, stdout=2, stderr=2)
    problems: list[SpawnError | None] = []
    Launching(
        run.loop, birth, process=lambda _pid: None, started=problems.append, exited=run.ended.append, keeper=keeper
    ).begin()
    run.until(lambda: problems and keeper.empty)
    assert "No such file" in str(problems[0])
    assert not run.ended


def test_an_agent_does_not_wait_for_a_keeper_that_takes_no_orders(run: Run) -> None:
    """More than the kernel keeps for it: all of them are started when it goes on."""
    keeper = run.pool.take()
    os.kill(keeper.pid, signal.SIGSTOP)
    for _ in range(40):
        run.start(keeper, "exit 3", TEXT="x" * 20_000)
    assert not keeper.empty
    os.kill(keeper.pid, signal.SIGCONT)
    run.until(lambda: keeper.empty and len(run.ended) == 40)
    assert {each.status.code for each in run.ended} == {3}
    assert run.problems == []


def test_an_order_for_which_there_are_no_descriptors_fails_alone(run: Run, tmp_path: Path) -> None:
    """One that has to wait for the keeper is kept with copies of its descriptors."""
    keeper = run.pool.take()
    run.start(keeper, f"echo > {tmp_path}/runs; exec sleep 1000")
    run.until(lambda: (tmp_path / "runs").exists() and not keeper._awaited)
    os.kill(keeper.pid, signal.SIGSTOP)
    while not keeper._unsent:
        run.start(keeper, "exit 3", TEXT="x" * 60_000)
    waiting = len(keeper._awaited)
    null = os.open(os.devnull, os.O_RDWR)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    fillers = []
    try:
        with suppress(OSError):
            while True:
                fillers.append(os.dup(null))
        os.close(fillers.pop())  # for one copy, and the order has three
        before = len(os.listdir(f"/proc/{os.getpid()}/fd"))
        birth = Birth(argv=["/bin/true"], env={}, stdin=null, stdout=null, stderr=2)
        keeper.start(birth, lambda _spawned: None, run.problems.append)
        assert len(os.listdir(f"/proc/{os.getpid()}/fd")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in (*fillers, null):
            os.close(fd)
    assert keeper.alive
    assert len(keeper._awaited) == waiting
    os.kill(keeper.pid, signal.SIGCONT)
    run.until(lambda: len(run.ended) == waiting)
    assert [problem.errno for problem in run.problems] == [errno.EMFILE]
    keeper.kill(60, lambda _living: None)
    run.until(lambda: keeper.empty)


def test_long_orders_keep_their_own_descriptors(run: Run, tmp_path: Path) -> None:
    """The kernel hands over the end of one together with the head, and the descriptors, of the next."""
    keeper = run.pool.take()
    os.kill(keeper.pid, signal.SIGSTOP)  # until all of them wait in the channel
    for number in range(3):
        run.start(keeper, "echo $NUMBER", tmp_path / str(number), NUMBER=str(number), TEXT="x" * 60_000)
    os.kill(keeper.pid, signal.SIGCONT)
    run.until(lambda: keeper.empty and len(run.ended) + len(run.problems) == 3)
    assert run.problems == []
    assert [(tmp_path / str(number)).read_text() for number in range(3)] == ["0\n", "1\n", "2\n"]


def test_a_task_inherits_its_own_streams_and_nothing_else(run: Run, tmp_path: Path) -> None:
    run.start(run.pool.take(), "ls /proc/$$/fd", tmp_path / "out")
    run.until(lambda: run.ended)
    assert (tmp_path / "out").read_text().split() == ["0", "1", "2"]


def test_an_event_without_words_is_no_end_of_a_keeper(run: Run) -> None:
    keeper = run.pool.take()
    run.loop._on_ready[keeper.channel.fileno()](READ | select.EPOLLHUP)  # of a descriptor that had its number before
    assert keeper.alive
    run.start(keeper, "exit 3")
    run.until(lambda: keeper.empty and run.ended)
    assert run.ended[0].status.code == 3


def test_a_start_below_a_keeper_that_is_gone_fails(run: Run) -> None:
    keeper = run.pool.take()
    os.kill(keeper.pid, signal.SIGKILL)
    run.until(lambda: not keeper.alive and keeper.pid not in run.loop.children)
    run.start(keeper, "exit 3")
    assert run.problems == [], "not within the call"
    run.until(lambda: run.problems)
    assert "killed or stopped" in str(run.problems[0])
    assert keeper.empty


def test_a_mistake_about_one_start_loses_no_word_of_the_others(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    keeper = run.pool.take()

    def fail(_pid: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    run.start(keeper, "exit 1", process=fail)
    run.start(keeper, "exit 2")
    said = b""
    while said.count(b'"ended"') < 2:  # all of it lies there for one read
        select.select([keeper.channel], [], [])
        said = keeper.channel.recv(1 << 16, socket.MSG_PEEK)
    run.until(lambda: keeper.empty and len(run.ended) == 2)
    assert sorted(each.status.code for each in run.ended) == [1, 2]
    assert "no space left" in caplog.text


def test_a_keeper_that_fails_says_why(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    keeper = run.pool.take()
    keeper.channel.send(b"[]\n")
    run.until(lambda: not keeper.alive and keeper.pid not in run.loop.children)
    assert "Traceback" in capfd.readouterr().err


def test_what_is_below_a_keeper_that_takes_no_orders_is_killed(run: Run, tmp_path: Path) -> None:
    keeper = run.pool.take()
    run.start(keeper, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    run.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    os.kill(keeper.pid, signal.SIGSTOP)
    keeper.kill(1000.0, lambda left: None)
    run.until(lambda: keeper.empty and run.ended)
    assert run.ended[0].status.signal == signal.SIGKILL


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A child of the agent that the agent knows nothing of."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_a_keeper_that_is_given_up_takes_nobody_elses_daemons_along(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keepers, "_TAKES_S", 0.0)
    keeper = run.pool.take()
    run.start(keeper, f"(setsid env -i sh -c 'echo $$ > {tmp_path}/pid; exec sleep 1000') & sleep 1000")
    run.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    hidden = int((tmp_path / "pid").read_text())
    with subprocess.Popen(["sleep", "1000"]) as daemon:  # of another job's prolog, younger than this keeper's use
        os.kill(keeper.pid, signal.SIGSTOP)
        while not keeper._unsent:
            run.start(keeper, "exit 3", TEXT="x" * 60_000)
        run.until(lambda: not keeper.alive and keeper.empty and run.ended)
        assert is_gone(hidden)
        assert not is_gone(daemon.pid)
        daemon.kill()


def test_a_signal_reaches_nobody_who_got_the_pid_of_a_task_since(run: Run, stranger: subprocess.Popen[bytes]) -> None:
    keeper = run.pool.take()
    assert not send_signal(Task(0, stranger.pid, keeper).process, signal.SIGTERM)
    started: list[int] = []
    run.start(keeper, "exec sleep 1000", process=started.append)
    run.until(lambda: started)
    assert send_signal(Task(0, started[0], keeper).process, signal.SIGTERM)
    run.until(lambda: keeper.empty and run.ended)
    keeper.pid, true_pid = stranger.pid, keeper.pid
    keeper._give_up()
    run.until(lambda: is_gone(true_pid))
    assert not is_gone(stranger.pid)


def test_a_keeper_that_cannot_be_forked_leaves_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "no process")

    run.pool.tracking.base = tmp_path
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        run.pool.take()
    assert os.listdir("/proc/self/fd") == before
    assert list(tmp_path.iterdir()) == []
    run.pool.tracking.base = None


def test_a_group_that_was_refused_is_not_asked_for_again_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(keepers, "begin_regrouped", lambda loop, gid, *_: asked.append(gid))
    other = os.getegid() + 1
    for _ in range(2):
        assert run.pool.prepare(other, lambda: None) is None, "there is nothing to wait for"
        assert run.pool.take(other).gid == os.getegid()
    assert asked == [other]


def test_nothing_waits_for_a_program_that_hangs_on_the_way_to_a_group(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`sg` may ask a directory far away: meanwhile other keepers work, and then the job does without the group."""
    hangs = tmp_path / "sg"
    hangs.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    hangs.chmod(0o755)
    monkeypatch.setattr(regrouped, "_SYSTEM_PATH", str(tmp_path))
    other = next(group.gr_gid for group in grp.getgrall() if group.gr_gid != os.getegid())
    came: list[bool] = []
    grouping = run.pool.prepare(other, lambda: came.append(True))
    assert grouping is not None
    started = tmp_path / "pid"
    run.until(lambda: started.exists() and started.read_text().endswith("\n"))
    assert not came, "it was not waited for: the loop went on"
    coming = run.pool._coming[grouping]
    run.loop.call_later(0.0, coming._refused)  # as after its patience
    run.until(lambda: bool(came))
    assert run.pool.take(other).gid == os.getegid()
    run.until(lambda: not os.path.exists(f"/proc/{started.read_text().strip()}"))


def test_who_has_left_is_not_told_of_the_keeper(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refuses = tmp_path / "sg"
    refuses.write_text("#!/bin/sh\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setattr(regrouped, "_SYSTEM_PATH", str(tmp_path))
    other = next(group.gr_gid for group in grp.getgrall() if group.gr_gid != os.getegid())
    came: list[bool] = []
    grouping = run.pool.prepare(other, lambda: came.append(True))
    assert grouping is not None
    grouping.cancel()
    run.until(lambda: not run.pool._coming)
    assert not came


def test_many_idle_keepers_are_kept_for_a_while_and_few_for_longer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepers, "_IDLE_KEPT", 2)
    monkeypatch.setattr(keepers, "_IDLE_S", 0.01)
    taken = [run.pool.take() for _ in range(5)]
    for keeper in taken:
        run.pool.give_back(keeper)
    assert [run.pool.take() for _ in range(2)] == [taken[4], taken[3]], "all of them were kept"
    for keeper in (taken[3], taken[4]):
        run.pool.give_back(keeper)
    run.until(lambda: [keeper.alive for keeper in taken] == [False, False, False, True, True])


@pytest.mark.parametrize("wished", [LINUXPROC, PGID])
def test_a_type_without_cgroups_makes_none(wished: str) -> None:
    tracking = Tracking.open("unused", wished)
    assert tracking.make_group() is None
    assert "child subreaper" in tracking.how
    assert ("process group" in tracking.how) == (wished == PGID)
