"""The daemon starts, survives, ends, and is never there twice. These start real ones, each in a home of its own."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes_cluster.processes import wait_for
from tests.support.gatherers import end_gatherers_of

from bireme.cli import lifecycle, store
from bireme.client import transport as transport_module
from bireme.client.transport import BiremeUnavailable, Transport
from bireme.commands.voice import CommandFailure
from bireme.daemon import process
from bireme.daemon.paths import Paths, default_home


def ask_to_end(home: str) -> int:
    """With its jobs; who has answered."""
    return int(Transport(home).post("/v1/shutdown", {"end_jobs": True})["pid"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("BIREME_CLUSTER_GPUS", "off")
    place = str(tmp_path / "home")
    yield place
    process.stop(place, ask=lambda: ask_to_end(place))
    end_gatherers_of(place)


def test_it_answers_when_start_returns(home: str) -> None:
    pid = process.start(home)
    with Transport(home) as transport:
        assert transport.get("/v1/ping")["pid"] == pid
        assert process.running_pid(home) == pid
        with pytest.raises(process.DaemonError, match=rf"a daemon \(pid {pid}\) already serves {home}"):
            process.start(home)
        assert transport.get("/v1/ping")["pid"] == pid
    expected = 0o711 if os.geteuid() == 0 else 0o700
    assert stat.S_IMODE(os.stat(home).st_mode) == expected
    assert stat.S_IMODE(os.stat(Paths(home).journal).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(Paths(home).log).st_mode) == 0o600


def test_a_daemon_whose_up_was_killed_goes_on() -> None:
    heard, says = os.pipe()
    os.close(heard)
    process.Readiness(says).say(pid=1)


def test_a_removed_socket_is_made_again(home: str) -> None:
    pid, paths = process.start(home), Paths(home)
    os.unlink(paths.socket)
    with Transport(home, patience_s=60.0) as transport:
        assert transport.get("/v1/ping")["pid"] == pid
    os.unlink(paths.socket)
    Path(paths.socket).write_text("not a socket")
    assert lifecycle.up(["--quiet", "--home", home]) == 0, "it waits for that"


def test_a_daemon_leaves_a_home_that_another_has_taken_the_place_of(home: str, tmp_path: Path) -> None:
    """Its folder was moved away, and a daemon of a new one serves the same path: commands must reach that one only."""
    pid, away = process.start(home), tmp_path / "away"
    os.rename(home, away)
    other = Paths(home)
    other.create()
    lock = process.Lock(other)
    try:
        wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "its end", within_s=120)
        assert not os.path.exists(other.socket), "it made no socket in a home that is not its own"
    finally:
        lock.release()
        shutil.rmtree(home)
        os.rename(away, home)
    assert "another daemon's" in Path(Paths(home).log).read_text()


def test_a_daemon_whose_home_comes_back_serves_it_again(home: str, tmp_path: Path) -> None:
    pid, away = process.start(home), tmp_path / "away"
    os.rename(home, away)
    Paths(home).create()
    wait_for(
        lambda: "was removed or replaced" in (away / "log" / "daemon.log").read_text(), "it to notice", within_s=120
    )
    assert not os.path.exists(Paths(home).socket)
    shutil.rmtree(home)
    os.rename(away, home)
    os.unlink(Paths(home).socket)
    with Transport(home, patience_s=60.0) as transport:
        assert transport.get("/v1/ping")["pid"] == pid


def test_down_ends_the_one_that_holds_the_home_whoever_answers(home: str) -> None:
    """An answer of another process does not count: the daemon gets the signal."""
    process.start(home)
    assert process.stop(home, ask=lambda: os.getpid()) is True
    assert process.running_pid(home) is None


def test_down_says_what_the_end_waits_for(home: str) -> None:
    """And ends it all the same when that never comes about."""
    Paths(home).create()
    holds = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "from bireme.daemon import paths, process; lock = process.Lock(paths.Paths(sys.argv[1]));"
        "print(flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", holds, home], stdout=subprocess.PIPE) as stuck:
        assert stuck.stdout is not None
        assert stuck.stdout.readline()
        Path(Paths(home).ending).write_text(f"{stuck.pid} the router to end\n")
        told: list[str] = []
        after_s = process._PATIENCE_S + 0.5
        assert process.stop(home, timeout_s=after_s, waits_for=told.append) is True
        assert stuck.wait(10) == -signal.SIGKILL
    killed = f"nothing more: it has not ended in {after_s:g} s (it waited for the router to end), and is killed"
    assert told == ["the router to end", killed]


def test_one_that_was_stopped_is_told_to_go_on_and_ends(home: str) -> None:
    pid = process.start(home)
    os.kill(pid, signal.SIGSTOP)
    assert process.stop(home, ask=lambda: ask_to_end(home)) is True
    assert process.running_pid(home) is None


def test_up_fails_when_the_daemon_that_is_there_does_not_answer(
    home: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lifecycle, "_ANSWERS_S", 0.2)
    pid = process.start(home)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert lifecycle.up(["--home", home]) == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    said = capfd.readouterr()
    assert (said.out, f"a daemon (pid {pid}) holds {home} but does not answer" in said.err) == ("", True)


def test_files_removed_from_run_let_no_second_one_in(home: str) -> None:
    """Nor anybody else who would write to the home; and the first one is still found, and ended, by who it is."""
    pid, paths = process.start(home), Paths(home)
    for file in (paths.lock_file, paths.pid_file):
        os.unlink(file)
    Path(paths.pid_file).write_text(f"{os.getpid()}\n")  # an old copy, put back: the number is somebody else's by now
    assert process.running_pid(home) == pid
    with pytest.raises(process.DaemonError, match=rf"a daemon \(pid {pid}\) already serves {home}"):
        process.Lock(paths)
    with pytest.raises(CommandFailure, match=rf"a daemon \(pid {pid}\) already serves {home}"):
        store._run(["recover", "--accept-loss", "--home", home])
    assert process.running_pid(home) == pid
    assert process.stop(home) is True


def test_one_that_does_not_answer_is_named(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there: to start another one is no help."""
    monkeypatch.setattr(transport_module, "SILENT_S", 0.05)
    pid, told = process.start(home), list[str]()
    os.kill(pid, signal.SIGSTOP)
    try:
        with Transport(home, timeout_s=0.5) as transport:
            transport.still_silent = told.append
            silence = rf"the daemon \(pid {pid}\) at \S+ does not answer \(no answer in time\); see: bireme doctor"
            with pytest.raises(BiremeUnavailable, match=silence):
                transport.get("/v1/ping")
    finally:
        os.kill(pid, signal.SIGCONT)
    (said,) = told
    assert said.startswith(f"the daemon (pid {pid}) has not answered for 0.05 s; still waiting")


def test_what_keeps_one_from_starting_is_named_with_its_place_and_a_way_out(home: str) -> None:
    def few_descriptors() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    up = [sys.executable, "-m", "bireme", "up", "--home", home]
    done = subprocess.run(up, preexec_fn=few_descriptors, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("bireme up: error: cannot ")
    assert f"{home}: Too many open files; let it open more files (ulimit -n 4096)" in done.stderr
    full = OSError(errno.ENOSPC, "No space left on device", f"{home}/run/conf.new")
    assert process.in_words(full, home) == (
        f"{home}/run/conf.new: No space left on device; make room on the disk of {home} (df -h {home})"
    )


def test_a_folder_in_the_place_of_the_journal_is_named(home: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs(Path(home, "run"))
    os.mkdir(Path(home, "journal.db"))
    assert store.main(["verify", "--home", home]) == 1
    assert f"damaged: {home}/journal.db is not a file: move it away" in capsys.readouterr().out
    with pytest.raises(process.DaemonError, match=rf"{home}/journal\.db: Is a directory; .*move it away"):
        process.start(home)


def test_what_was_accepted_is_there_after_a_kill(home: str) -> None:
    pid = process.start(home)
    with Transport(home) as transport:
        job = transport.post("/v1/jobs", {"spec": {"hold": True}, "script": "#!/bin/sh\n"})["job_id"]
    os.kill(pid, signal.SIGKILL)
    while process.running_pid(home) == pid:
        pass
    with pytest.raises(BiremeUnavailable, match="nobody listens"):
        Transport(home).get("/v1/ping")
    assert process.start(home) != pid
    assert [record["job_id"] for record in Transport(home).get("/v1/jobs")["jobs"]] == [job]


def test_stopping_what_does_not_run(home: str) -> None:
    assert process.stop(home) is False
    assert process.running_pid(home) is None


def test_sigterm_is_enough(home: str) -> None:
    process.start(home)
    assert process.stop(home) is True
    assert process.running_pid(home) is None


def test_a_bad_configuration_is_told_to_whoever_starts_it(home: str, tmp_path: Path) -> None:
    with pytest.raises(process.DaemonError, match=r"nowhere/slurm\.conf: cannot be read: No such file or directory"):
        process.start(home, conf=str(tmp_path / "nowhere" / "slurm.conf"))
    os.makedirs(home, exist_ok=True)
    Path(home, "bireme.toml").write_text("[log]\ncolor = 1\n")
    with pytest.raises(process.DaemonError, match=r"unknown setting 'log\.color'"):
        process.start(home)
    Path(home, "bireme.toml").unlink()


def test_a_damaged_journal_is_told_to_whoever_starts_it(home: str) -> None:
    os.makedirs(home)
    Path(home, "journal.db").write_bytes(b"rubbish" * 100)
    with pytest.raises(process.DaemonError, match=r"journal\.db is damaged"):
        process.start(home)
    assert process.running_pid(home) is None


def test_a_home_deeper_than_a_socket_address_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIREME_CLUSTER_GPUS", "off")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    deep = str(tmp_path / ("d" * 60) / ("e" * 60))
    process.start(deep)
    try:
        assert Transport(deep).get("/v1/ping")["cluster"] == "bireme"
    finally:
        process.stop(deep, ask=lambda: ask_to_end(deep))


def test_a_home_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIREME_HOME", "/a/b")
    assert default_home() == "/a/b"
    monkeypatch.delenv("BIREME_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_home() == "/state/bireme"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/ann")
    assert default_home() == "/home/ann/.local/state/bireme"
