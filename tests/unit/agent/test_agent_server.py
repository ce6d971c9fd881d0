"""The agent as the daemon sees it: a real process, a real socket, real jobs."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_process import AgentProcess, DaemonEnd, connect_raw, is_running, job_environment, until

from bireme.agent.messages import lines, protocol


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    running = AgentProcess(tmp_path)
    yield running
    running.close()


@pytest.fixture
def daemon(agent: AgentProcess) -> Iterator[DaemonEnd]:
    with agent.connect() as connection:
        yield connection


def started_pid(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip(), "the script to write its pid")
    return int(path.read_text())


# --- a batch job's life ------------------------------------------------------------------------------------


def test_batch_ends_with_its_exit_code_and_output(daemon: DaemonEnd, tmp_path: Path) -> None:
    out = tmp_path / "out"
    daemon.start_job(1, "#!/bin/bash\necho hello; pwd; exit 3\n", out)
    daemon.expect("launched")
    ended = daemon.expect("batch_ended")
    assert ended["status"] == {"code": 3, "signal": 0, "out_of_memory": False}
    assert ended["cleared"]
    assert out.read_text() == f"hello\n{tmp_path}\n"


def test_a_script_finds_its_own_pid_in_its_environment(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.start_job(1, '#!/bin/bash\necho "$(env | grep ^SLURM_TASK_PID=)" $$\n', tmp_path / "out")
    daemon.expect("launched")
    daemon.expect("batch_ended")
    told, own = (tmp_path / "out").read_text().split()
    assert told == f"SLURM_TASK_PID={own}"


def test_jobs_of_one_script_run_one_file(daemon: DaemonEnd, tmp_path: Path) -> None:
    for job in (1, 2):
        daemon.start_job(job, "#!/bin/bash\nbasename $0\n", tmp_path / "out")
        daemon.expect("launched")
        daemon.expect("batch_ended")
        assert (tmp_path / "out").read_text() == "slurm_script\n"
    assert len(list((daemon.agent.directory / "scripts").glob("*/slurm_script"))) == 1


def test_a_script_killed_by_a_signal_says_so(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.start_job(1, "#!/bin/bash\nkill -USR1 $$\n", tmp_path / "out")
    daemon.expect("launched")
    assert daemon.expect("batch_ended")["status"]["signal"] == signal.SIGUSR1


def test_a_notice_is_written_once_and_given_again_in_the_same_words_once_more(
    daemon: DaemonEnd, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    daemon.start_job(1, "#!/bin/bash\necho runs\nsleep 1000\n", out)
    daemon.expect("launched")
    until(lambda: out.exists() and out.read_text() == "runs\n", "the script to start")
    for no, at in enumerate((100.0, 100.0, 250.5, 100.0), 1):  # as after a restart of the daemon, and again
        daemon.send(op="tell", job=1, gen=1, text="its GPU is idle", at=at, no=100 + no)
    daemon.send(op="tell", job=1, gen=1, text="the last one", at=300.0, no=200)
    until(lambda: "the last one" in out.read_text(), "the lines to be written")
    said = [line.partition(": *** JOB 1 ON ")[2].partition(": ")[2] for line in out.read_text().splitlines()[1:]]
    assert said == ["its GPU is idle ***", "its GPU is idle ***", "the last one ***"]


def test_the_same_order_again_starts_nothing(daemon: DaemonEnd, tmp_path: Path) -> None:
    script = "#!/bin/bash\necho x >> count\nsleep 1000\n"
    daemon.start_job(1, script, tmp_path / "out")
    daemon.expect("launched")
    until(lambda: (tmp_path / "count").exists(), "the script to start")
    daemon.start_job(1, script, tmp_path / "out")
    daemon.expect("launched")
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    daemon.expect("batch_ended")
    daemon.expect("cleared")
    daemon.start_job(1, script, tmp_path / "out")  # ended and not acknowledged: said again, not run again
    heard = [daemon.next()["ev"] for _ in range(4)]
    assert heard == ["launched", "launched", "batch_ended", "cleared"]
    assert (tmp_path / "count").read_text() == "x\n"


def test_prepare_then_start_is_a_gangs_first_node(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.start_job(1, "#!/bin/bash\n", tmp_path / "out", alone=False)
    daemon.expect("launched")
    assert not daemon.expect("batch_ended")["cleared"]
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    daemon.expect("cleared")


def test_an_older_generation_blocks_a_newer_one(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.send(op="prepare", job=1, gen=2, uid=os.getuid(), gid=os.getgid())
    refused = daemon.expect("refused")
    assert refused["gen"] == 2
    assert "still being ended" in refused["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs jobs of others")
def test_root_runs_a_job_as_its_owner(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    home, theirs = tempfile.mkdtemp(), tempfile.mkdtemp()
    os.chmod(home, 0o711)
    os.chown(theirs, nobody.pw_uid, nobody.pw_gid)
    agent = AgentProcess(Path(home))
    out = Path(theirs) / "out"
    try:
        with agent.connect() as daemon:
            script = "#!/bin/bash\nid -u; id -G; cat $0 | head -1; umask\n"
            owner = {"uid": nobody.pw_uid, "gid": nobody.pw_gid, "groups": [nobody.pw_gid]}
            daemon.start_job(1, script, out, **owner, batch={"umask": 0o027})
            daemon.expect("launched")
            assert daemon.expect("batch_ended")["cleared"]
            kept = {"stdout": str(tmp_path / "not-theirs")}
            daemon.start_job(2, script, out, **owner, batch=kept)
            daemon.expect("launched")
            assert "Permission denied" in daemon.expect("batch_ended")["note"]
        number = str(nobody.pw_uid)
        assert out.read_text().split("\n") == [number, str(nobody.pw_gid), "#!/bin/bash", "0027", ""]
        assert (out.stat().st_uid, out.stat().st_mode & 0o777) == (nobody.pw_uid, 0o640)
    finally:
        agent.close()
        shutil.rmtree(home)
        shutil.rmtree(theirs)


# --- what goes wrong ---------------------------------------------------------------------------------------


def test_a_missing_interpreter_is_the_jobs_failure(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.start_job(1, "#!/no/such/shell\n", tmp_path / "out")
    daemon.expect("launched")
    ended = daemon.expect("batch_ended")
    assert ended["status"]["code"] == 2
    assert ended["cleared"]
    assert "bad interpreter(/no/such/shell)" in (tmp_path / "out").read_text()


def test_an_output_folder_named_after_the_job_is_made(daemon: DaemonEnd, tmp_path: Path) -> None:
    told = tmp_path / "logs" / "1" / "out"
    daemon.start_job(1, "#!/bin/bash\necho here\n", tmp_path / "out", batch={"stdout": str(told)})
    daemon.expect("launched")
    assert daemon.expect("batch_ended")["status"]["code"] == 0
    assert told.read_text() == "here\n"


def test_an_output_that_cannot_be_opened_fails_the_job_as_slurm_does(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.start_job(1, "#!/bin/bash\ntouch ran\n", tmp_path / "out", batch={"stdout": "/dev/null/out"})
    daemon.expect("launched")
    ended = daemon.expect("batch_ended")
    assert ended["status"] == {"code": 0, "signal": 53, "out_of_memory": False}
    assert "Could not open stdout file /dev/null/out: Not a directory" in ended["note"]
    assert not (tmp_path / "ran").exists()


def test_a_vanished_working_directory_becomes_tmp(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.start_job(1, "#!/bin/bash\npwd\n", tmp_path / "out", batch={"cwd": "/no/folder"})
    daemon.expect("launched")
    assert daemon.expect("batch_ended")["status"]["code"] == 0
    text = (tmp_path / "out").read_text()
    assert "couldn't chdir to `/no/folder'" in text
    assert text.endswith("/tmp\n")


@pytest.mark.parametrize(
    "line",
    [b"not json\n", b"[1]\n", b'{"op":"dance"}\n', b'{"op":"terminate"}\n', b'{"op":"signal"}\n', b"\xff\n"],
)
def test_a_bad_line_is_answered_and_harms_nobody(daemon: DaemonEnd, tmp_path: Path, line: bytes) -> None:
    daemon.send_raw(line)
    daemon.expect("error")
    daemon.start_job(1, "#!/bin/bash\n", tmp_path / "out")
    daemon.expect("launched")
    daemon.expect("batch_ended")


@pytest.mark.parametrize(("generation", "answer"), [(1, "launched"), (2, "refused")])
def test_a_start_that_cannot_be_read_takes_no_running_job_away(
    daemon: DaemonEnd, tmp_path: Path, generation: int, answer: str
) -> None:
    """The same start again, of a daemon that came back; or the next one, while this one is still there."""
    daemon.start_job(1, f"#!/bin/bash\necho $$ > {tmp_path}/pid\nexec sleep 900\n", tmp_path / "out")
    daemon.expect("launched")
    pid = started_pid(tmp_path / "pid")
    daemon.send(op="start", job=1, gen=generation, uid="no number", gid=0, no=7)
    assert daemon.expect(answer)["gen"] == generation
    assert daemon.next()["did"] == [7]
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    assert daemon.expect("batch_ended")["status"]["signal"] == signal.SIGKILL
    daemon.expect("cleared")
    assert not is_running(pid)


def test_a_step_outlives_a_repeated_order_that_cannot_be_read(agent: AgentProcess, daemon: DaemonEnd) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    order = {"op": "step", "job": 1, "gen": 1, "step": 0, "key": "k", "argv": ["sleep", "900"], "cwd": "/"}
    daemon.send(**order, umask=0o022, env=job_environment(agent, 1), tasks=[{"id": 0, "env": {}}])
    daemon.expect("step_began")
    daemon.send(op="prepare", job=1, gen=1, uid="no number", gid=0)
    daemon.expect("prepared")
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    assert daemon.expect("step_ended")["status"]["signal"] == signal.SIGKILL
    daemon.expect("cleared")


def test_a_start_order_without_a_batch_field_is_refused(daemon: DaemonEnd) -> None:
    daemon.send(op="start", job=1, gen=1, uid=os.getuid(), gid=os.getgid(), batch={})
    assert daemon.expect("refused")["reason"] == "start: Object missing required field `script` - at `$.batch`"


def test_a_connection_without_a_hello_is_dropped(agent: AgentProcess) -> None:
    with connect_raw(agent) as connection:
        connection.sendall(b"GET / HTTP/1.1\n\n")
        assert connection.recv(100) == b""
    with agent.connect() as daemon:
        daemon.send(op="ping", id=4)
        assert daemon.next()["re"] == 4


# --- ending ------------------------------------------------------------------------------------------------


def test_terminate_asks_first_and_kills_after_the_grace(daemon: DaemonEnd, tmp_path: Path) -> None:
    script = "#!/bin/bash\ntrap 'echo asked' TERM\necho $$ > pid\nwhile :; do sleep 0.05; done\n"
    daemon.start_job(1, script, tmp_path / "out")
    daemon.expect("launched")
    started_pid(tmp_path / "pid")
    daemon.send(op="terminate", job=1, gen=1, grace_s=0.3, cause="TIME LIMIT")
    assert daemon.expect("batch_ended")["status"]["signal"] == signal.SIGKILL
    daemon.expect("cleared")
    text = (tmp_path / "out").read_text()
    assert "asked" in text
    assert "*** JOB 1 ON n1 CANCELLED AT" in text
    assert "DUE TO TIME LIMIT ***" in text


def test_terminate_reaches_processes_that_left_their_session(daemon: DaemonEnd, tmp_path: Path) -> None:
    script = "#!/bin/bash\nsetsid bash -c 'echo $$ > stray; exec sleep 1000' &\nwait\n"
    daemon.start_job(1, script, tmp_path / "out")
    daemon.expect("launched")
    stray = started_pid(tmp_path / "stray")
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    daemon.expect("batch_ended")
    daemon.expect("cleared")
    assert not is_running(stray)


@pytest.mark.parametrize("way", ["sleep 1000 &", 'setsid sleep 1000 & while [ -z "$(pgrep -n -P $$)" ]; do :; done'])
def test_a_job_that_leaves_a_process_is_not_cleared_by_itself(daemon: DaemonEnd, tmp_path: Path, way: str) -> None:
    daemon.start_job(1, f"#!/bin/bash\n{way}\necho $! > stray\n", tmp_path / "out")
    daemon.expect("launched")
    assert not daemon.expect("batch_ended")["cleared"]
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    daemon.expect("cleared")
    assert not is_running(int((tmp_path / "stray").read_text()))


def test_signals_reach_the_batch_script_alone_or_everything(daemon: DaemonEnd, tmp_path: Path) -> None:
    script = "#!/bin/bash\ntrap 'echo batch; exit 9' USR1\nsleep 1000 & echo $! > child\necho $$ > pid\nwait\n"
    daemon.start_job(1, script, tmp_path / "out")
    daemon.expect("launched")
    started_pid(tmp_path / "pid")
    daemon.send(op="signal", job=1, gen=1, signal=signal.SIGUSR1, scope="batch")
    ended = daemon.expect("batch_ended")
    assert ended["status"]["code"] == 9
    assert not ended["cleared"]  # the child did not get the signal
    daemon.send(op="signal", job=1, gen=1, signal=signal.SIGTERM, scope="all")
    child = int((tmp_path / "child").read_text())
    until(lambda: not is_running(child), "the child to end")


def test_a_suspended_job_stops_and_goes_on(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.start_job(1, "#!/bin/bash\necho $$ > pid\nwhile :; do :; done\n", tmp_path / "out")
    daemon.expect("launched")
    pid = started_pid(tmp_path / "pid")
    state = lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]  # noqa: E731
    daemon.send(op="suspend", job=1, gen=1)
    until(lambda: state() == "T", "the script to stop")
    daemon.send(op="resume", job=1, gen=1)
    until(lambda: state() == "R", "the script to go on")
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    daemon.expect("batch_ended")


def test_an_epilog_runs_before_the_job_is_cleared(daemon: DaemonEnd, tmp_path: Path) -> None:
    epilog = tmp_path / "epilog"
    epilog.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID > {tmp_path}/epilogged\n")
    epilog.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1"}
    daemon.start_job(1, "#!/bin/bash\n", tmp_path / "out", epilog=[str(epilog)], env=env)
    daemon.expect("launched")
    assert not daemon.expect("batch_ended")["cleared"]
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    daemon.expect("cleared")
    assert (tmp_path / "epilogged").read_text() == "1\n"


def test_a_failing_prolog_refuses_the_job(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.start_job(1, "#!/bin/bash\ntouch ran\n", tmp_path / "out", prolog=["/bin/false"])
    refused = daemon.expect("refused")
    assert refused["prolog_failed"]
    assert not (tmp_path / "ran").exists()


def test_a_node_that_is_short_of_descriptors_gives_the_launch_back(
    agent: AgentProcess, daemon: DaemonEnd, tmp_path: Path
) -> None:
    """Nothing of the job's making: it has not failed, and may be started where there are some."""
    before = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
    daemon.send(op="ping", id=1)
    assert daemon.next()["re"] == 1
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    daemon.start_job(1, "#!/bin/bash\ntouch ran\n", tmp_path / "out")
    refused = daemon.expect("refused")
    assert refused["short"]
    assert "Too many open files" in refused["reason"]
    daemon.send(op="ack", job=1, gen=1)
    resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, before)
    daemon.start_job(1, "#!/bin/bash\nexit 3\n", tmp_path / "out", gen=2)
    daemon.expect("launched")
    assert daemon.expect("batch_ended")["status"]["code"] == 3
    assert not (tmp_path / "ran").exists()


# --- surviving ---------------------------------------------------------------------------------------------


def test_events_are_said_again_until_acknowledged(agent: AgentProcess, tmp_path: Path) -> None:
    with agent.connect() as daemon:
        daemon.start_job(1, "#!/bin/bash\nexit 5\n", tmp_path / "out")
        first = [daemon.expect("launched"), daemon.expect("batch_ended")]
    with agent.connect() as daemon:
        assert daemon.welcome["holds"] == [[1, 1]]
        assert [daemon.next(), daemon.next()] == first
        daemon.send(op="ack", job=1, gen=1)
    with agent.connect() as daemon:
        assert daemon.welcome["holds"] == []
        daemon.send(op="ping", id=1)
        assert daemon.next()["re"] == 1


def test_a_killed_agents_job_vanishes_and_leaves_no_process(agent: AgentProcess, tmp_path: Path) -> None:
    script = "#!/bin/bash\nsetsid sleep 1000 & echo $! > stray\necho $$ > pid\nsleep 1000\n"
    with agent.connect() as daemon:
        daemon.start_job(1, script, tmp_path / "out")
        daemon.expect("launched")
        pids = [started_pid(tmp_path / "pid"), int((tmp_path / "stray").read_text())]
    agent.kill()
    agent.start()
    with agent.connect() as daemon:
        assert daemon.welcome["epoch"] == 2
        events = [daemon.next(), daemon.next()]
        assert [event["ev"] for event in events] == ["launched", "vanished"]
        assert "died" in events[1]["reason"]
        daemon.start_job(1, script, tmp_path / "out")  # a daemon that had not heard yet: said again
        assert [daemon.next()["ev"], daemon.next()["ev"]] == ["launched", "vanished"]
    assert [is_running(pid) for pid in pids] == [False, False]


def test_a_known_exit_survives_the_agent(agent: AgentProcess, tmp_path: Path) -> None:
    with agent.connect() as daemon:
        daemon.start_job(1, "#!/bin/bash\nexit 6\n", tmp_path / "out")
        daemon.expect("launched")
        daemon.expect("batch_ended")
    agent.kill()
    agent.start()
    with agent.connect() as daemon:
        daemon.expect("launched")
        assert daemon.expect("batch_ended")["status"]["code"] == 6
        daemon.send(op="ack", job=1, gen=1)
        daemon.send(op="terminate", job=1, gen=1, grace_s=0)
        assert daemon.expect("cleared")["seq"] == 3


def test_two_agents_never_own_one_node(agent: AgentProcess) -> None:
    assert agent.start() == {"node": "n1", "running": True}
    with agent.connect() as daemon:
        assert daemon.welcome["pid"] == agent.pid


def test_exit_ends_the_jobs_first(tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path)
    with agent.connect() as daemon:
        daemon.start_job(1, "#!/bin/bash\necho $$ > pid\nsleep 1000\n", tmp_path / "out")
        daemon.expect("launched")
        pid = started_pid(tmp_path / "pid")
        daemon.send(op="exit")
        daemon.expect("batch_ended")
        daemon.expect("cleared")
    until(lambda: not is_running(agent.pid), "the agent to exit")
    assert not is_running(pid)


# --- steps -------------------------------------------------------------------------------------------------


def step_order(agent: AgentProcess, argv: list[str], tasks: int = 1, **changes: Any) -> dict[str, Any]:
    env = job_environment(agent, 1)
    each = [{"id": rank, "env": {"SLURM_PROCID": str(rank)}} for rank in range(tasks)]
    order = {"op": "step", "job": 1, "gen": 1, "step": 0, "key": "k", "cwd": "/", "env": env, "tasks": each}
    return order | {"argv": argv} | changes


def test_streams_need_the_steps_key(daemon: DaemonEnd) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.send(**step_order(daemon.agent, ["sleep", "1000"]))
    daemon.expect("step_began")
    with connect_raw(daemon.agent) as connection:
        connection.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "wrong"}))
        frames = protocol.FrameSplitter().feed(connection.recv(1000))
        assert [(kind, text[:13]) for kind, _, text in frames] == [(protocol.MESSAGE, b"Access denied")]
        assert connection.recv(100) == b""


def test_a_step_for_a_job_that_is_not_there_ends_at_once(daemon: DaemonEnd) -> None:
    daemon.send(**step_order(daemon.agent, ["true"]))
    daemon.expect("step_began")
    ended = daemon.expect("step_ended")
    assert ended["status"]["code"] == 1
    assert "not running" in ended["note"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mpi": "pmi2", "node_of_rank": [0]}, "slurmstepd: error: cannot read the order to start it: ValueError: "),
        ({"tasks": [{"id": 0, "env": {}}, {"env": {}}]}, "step: Object missing required field `id` - at `$.tasks[1]`"),
        ({"env": None}, "step: Expected `object`, got `null` - at `$.env`"),
        ({"umask": True}, "step: Expected `int | null`, got `bool` - at `$.umask`"),
    ],
    ids=["of an older daemon", "a task", "the environment", "no number"],
)
def test_a_step_whose_order_cannot_be_read_fails_and_says_why(
    daemon: DaemonEnd, changes: dict[str, Any], why: str
) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.send(**(step_order(daemon.agent, ["sleep", "1000"]) | changes))
    daemon.expect("step_began")
    assert daemon.expect("step_ended")["status"] == {"code": 1, "signal": 0, "out_of_memory": False}
    told = b""
    with connect_raw(daemon.agent) as connection:
        connection.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"}))
        splitter = protocol.FrameSplitter()
        while data := connection.recv(1 << 16):
            shown = (protocol.STDERR, protocol.MESSAGE)
            told += b"".join(text for kind, _, text in splitter.feed(data) if kind in shown)
    assert told.decode().startswith(why)
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    daemon.expect("cleared")


def test_a_step_of_which_not_even_the_tasks_are_known_fails(daemon: DaemonEnd) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.send(**step_order(daemon.agent, ["sleep", "1000"], step=3))
    daemon.expect("step_began")
    with connect_raw(daemon.agent) as connection, connect_raw(daemon.agent) as later:
        connection.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"}))
        later.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 3, "key": "wrong"}))
        assert b"Access denied" in later.recv(1000), "and so the first one has been heard, too"
        order = step_order(daemon.agent, ["true"])
        del order["tasks"]
        unread = "step: Object missing required field `tasks`"
        daemon.send(**order)
        daemon.expect("step_began")
        ended = daemon.expect("step_ended")
        assert (ended["step"], ended["status"]["code"], ended["note"]) == (0, 1, unread)
        frames = protocol.FrameSplitter().feed(connection.recv(1000))
    assert [(kind, text) for kind, _, text in frames] == [(protocol.MESSAGE, unread.encode())]
    daemon.send(**(step_order(daemon.agent, []) | {"step": 3, "scripts": 7}))  # said again, badly: it runs on
    assert daemon.expect("error")["text"].startswith("step: ")
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    assert daemon.expect("step_ended")["step"] == 3


def test_a_step_that_is_ended_says_so_to_its_client(daemon: DaemonEnd) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.send(**step_order(daemon.agent, ["sleep", "1000"]))
    daemon.expect("step_began")
    told = b""
    with connect_raw(daemon.agent) as connection:
        connection.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"}))
        daemon.send(op="ping", id=1)
        daemon.next()
        daemon.send(op="terminate", job=1, gen=1, grace_s=0, cause="TIME LIMIT")
        splitter = protocol.FrameSplitter()
        while data := connection.recv(1 << 16):
            told += b"".join(text for kind, _, text in splitter.feed(data) if kind == protocol.STDERR)
    assert told.startswith(b"slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT ")
    assert told.endswith(b" DUE TO TIME LIMIT ***\n")


def test_tasks_that_failed_are_told_one_by_one_in_the_order_of_time(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    os.mkfifo(tmp_path / "second is over")
    script = """case $SLURM_PROCID in
        0) exit 0;;
        1) read word < "second is over"; kill -SEGV $$;;
        2) exit 7;;
        3) while kill -0 $(cat pid) 2> /dev/null; do sleep 0.01; done; echo > "second is over"; exit 0;;
    esac"""
    wrapped = [
        "bash",
        "-c",
        f"if [ $SLURM_PROCID = 2 ]; then echo $$ > pid; fi; while ! [ -s pid ]; do :; done\n{script}",
    ]
    daemon.send(**step_order(daemon.agent, wrapped, 4, cwd=str(tmp_path)))
    daemon.expect("step_began")
    ended = daemon.expect("step_ended")
    assert [(each["task"], each["status"]["code"], each["status"]["signal"]) for each in ended["failed"]] == [
        (2, 7, 0),
        (1, 0, signal.SIGSEGV),
    ]
    assert ended["failed"][0]["at"] <= ended["failed"][1]["at"] <= ended["at"]


def test_output_from_before_the_client_came_is_kept(daemon: DaemonEnd) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.send(**step_order(daemon.agent, ["bash", "-c", "echo $SLURM_PROCID; head -c 300000 /dev/zero"], 2))
    daemon.expect("step_began")
    assert daemon.expect("step_ended")["usage"]["tasks"] == 2
    received: dict[int, int] = {}
    with connect_raw(daemon.agent) as connection:
        connection.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"}))
        splitter = protocol.FrameSplitter()
        while data := connection.recv(1 << 20):
            for kind, task, payload in splitter.feed(data):
                if kind == protocol.STDOUT:
                    received[task] = received.get(task, 0) + len(payload)
    assert received == {0: 300002, 1: 300002}


def test_a_task_prolog_changes_the_tasks_environment(daemon: DaemonEnd, tmp_path: Path) -> None:
    prolog = tmp_path / "task_prolog"
    prolog.write_text("#!/bin/sh\necho export ADDED=by prolog\necho unset SLURM_PROCID\necho print greeting\n")
    prolog.chmod(0o755)
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    out = tmp_path / "out"
    order = step_order(daemon.agent, ["bash", "-c", 'echo "$ADDED${SLURM_PROCID-unset}"'], task_prolog=[str(prolog)])
    order["tasks"][0]["stdout"] = str(out)
    daemon.send(**order)
    daemon.expect("step_began")
    daemon.expect("step_ended")
    assert out.read_text() == "greeting\nby prologunset\n"


@pytest.mark.parametrize("order", [{"op": "terminate"}, {"op": "terminate_step", "step": 0}], ids=["job", "step"])
def test_a_task_prolog_ends_with_its_step_and_the_task_never_starts(
    daemon: DaemonEnd, tmp_path: Path, order: dict[str, Any]
) -> None:
    prolog = tmp_path / "task_prolog"
    prolog.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\nsleep 1000\n")
    prolog.chmod(0o755)
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.send(**step_order(daemon.agent, ["touch", f"{tmp_path}/ran"], task_prolog=[str(prolog)]))
    until((tmp_path / "pid").exists, "the prolog to run")
    daemon.send(**order, job=1, gen=1, grace_s=1000)
    daemon.expect("step_began")
    assert daemon.expect("step_ended")["status"]["signal"] == signal.SIGTERM
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "ran").exists()


def test_background_processes_do_not_outlive_their_step(daemon: DaemonEnd, tmp_path: Path) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    daemon.send(**step_order(daemon.agent, ["bash", "-c", f"sleep 1000 & echo $! > {tmp_path}/pid"]))
    daemon.expect("step_began")
    daemon.expect("step_ended")
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_terminal_is_a_terminal(daemon: DaemonEnd) -> None:
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    order = step_order(daemon.agent, ["bash", "-c", "read line; stty size; echo got $line; tty | head -c 9"])
    order["tasks"][0]["terminal"] = True
    received = b""
    with connect_raw(daemon.agent) as connection:
        connection.sendall(lines.encode_line({"hello": "stream", "job": 1, "step": 0, "key": "k"}))
        daemon.send(**order)
        daemon.expect("step_began")
        size = {"rows": 33, "columns": 77}
        connection.sendall(protocol.encode_json_frame(protocol.WINDOW_SIZE, protocol.ALL_TASKS, size))
        connection.sendall(protocol.encode_frame(protocol.STDIN, 0, b"word\n"))
        splitter = protocol.FrameSplitter()
        while data := connection.recv(1 << 16):
            received += b"".join(text for kind, _, text in splitter.feed(data) if kind == protocol.STDOUT)
    assert b"33 77" in received
    assert b"got word" in received
    assert b"/dev/pts/" in received


# --- numbered orders ---------------------------------------------------------------------------------------


def test_an_order_is_answered_by_its_number_and_a_signal_that_comes_again_is_not_sent_again(
    daemon: DaemonEnd, tmp_path: Path
) -> None:
    script = "#!/bin/bash\ntrap 'echo usr1 >>signals' USR1\necho $$ >ready\nwhile :; do sleep 0.05; done\n"
    daemon.start_job(1, script, tmp_path / "out", no=1)
    assert {"ev": "did", "did": [1]} in (said := [daemon.next(), daemon.next()]), said
    until((tmp_path / "ready").exists, "the trap to be set")
    for _ in range(2):
        daemon.send(op="signal", job=1, gen=1, signal=signal.SIGUSR1, scope="batch", no=2)
        assert daemon.next() == {"ev": "did", "did": [2]}
        until((tmp_path / "signals").exists, "the signal to arrive")
    daemon.send(op="signal", job=1, gen=1, signal=signal.SIGUSR1, scope="batch", no=3)
    assert daemon.next() == {"ev": "did", "did": [3]}
    until(lambda: (tmp_path / "signals").read_text() == "usr1\n" * 2, "the other signal, and no third")


def test_one_script_around_jobs_and_tasks_is_told_which_of_them_it_is(daemon: DaemonEnd, tmp_path: Path) -> None:
    script = tmp_path / "around"
    script.write_text(f'#!/bin/sh\necho "$SLURM_SCRIPT_CONTEXT" >>{tmp_path}/contexts\n')
    script.chmod(0o755)
    around = [str(script)]
    told = {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid(), prolog=around, epilog=around, env=told)
    daemon.expect("prepared")
    out = tmp_path / "out"
    order = step_order(daemon.agent, ["env"], task_prolog=around, task_epilog=around)
    order["tasks"] = [{"id": 0, "env": {}, "stdout": str(out), "stderr": str(out)}]
    daemon.send(**order)
    daemon.expect("step_began")
    daemon.expect("step_ended")
    daemon.send(op="terminate", job=1, gen=1, grace_s=0)
    daemon.expect("cleared")
    contexts = (tmp_path / "contexts").read_text().split()
    assert contexts == ["prolog_slurmd", "prolog_task", "epilog_task", "epilog_slurmd"]
    assert "SLURM_SCRIPT_CONTEXT" not in out.read_text()


def task_script(path: Path, text: str) -> list[str]:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return [str(path)]


def test_task_scripts_run_around_a_batch_script_too(daemon: DaemonEnd, tmp_path: Path) -> None:
    """The script gets what the prolog exports; the epilog has the environment of before, and is heard on stderr."""
    prolog = task_script(
        tmp_path / "prolog", "echo export ADDED=by prolog\necho unset SLURMD_NODENAME\necho print greeting"
    )
    epilog = task_script(
        tmp_path / "epilog", 'echo "epilog: ${ADDED-nothing}, ${SLURMD_NODENAME-gone}" >&2; echo unheard'
    )
    script = '#!/bin/bash\necho "$ADDED, ${SLURMD_NODENAME-gone}"\nexit 3\n'
    daemon.start_job(1, script, tmp_path / "out", task_prolog=prolog, task_epilog=epilog, alone=True)
    daemon.expect("launched")
    ended = daemon.expect("batch_ended")
    assert (ended["status"]["code"], ended["cleared"]) == (3, True)
    assert (tmp_path / "out").read_text() == "greeting\nby prolog, gone\nepilog: nothing, n1\n"


def test_task_scripts_run_on_a_gangs_first_node(daemon: DaemonEnd, tmp_path: Path) -> None:
    prolog = task_script(tmp_path / "prolog", "echo export ADDED=by prolog")
    epilog = task_script(tmp_path / "epilog", "echo epilog >&2")
    daemon.send(op="prepare", job=1, gen=1, uid=os.getuid(), gid=os.getgid())
    daemon.expect("prepared")
    script = '#!/bin/bash\necho "$ADDED"\n'
    daemon.start_job(1, script, tmp_path / "out", alone=False, task_prolog=prolog, task_epilog=epilog)
    daemon.expect("launched")
    daemon.expect("batch_ended")
    assert (tmp_path / "out").read_text() == "by prolog\nepilog\n"


def test_a_batch_script_does_not_start_when_its_task_prolog_fails(daemon: DaemonEnd, tmp_path: Path) -> None:
    prolog = task_script(tmp_path / "prolog", "echo print hello\nexit 7")
    epilog = task_script(tmp_path / "epilog", "echo epilog >&2\nexit 8")
    daemon.start_job(1, "#!/bin/bash\necho ran\n", tmp_path / "out", task_prolog=prolog, task_epilog=epilog)
    daemon.expect("launched")
    assert daemon.expect("batch_ended")["status"]["code"] == 7
    said = (tmp_path / "out").read_text().splitlines()
    assert said[:2] == ["hello", "slurmstepd: error: TaskProlog failed status=7"]
    assert said[2:] == ["epilog", "slurmstepd: error: --task-epilog failed status=2048"]


@pytest.mark.parametrize("grace_s", [1000, 0])
def test_a_task_prolog_of_a_batch_script_ends_with_the_job(daemon: DaemonEnd, tmp_path: Path, grace_s: int) -> None:
    begun = f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid"
    prolog = task_script(tmp_path / "prolog", f"trap '' TERM\n{begun}\nsleep 1000")
    daemon.start_job(1, "#!/bin/bash\necho ran\n", tmp_path / "out", task_prolog=prolog)
    daemon.expect("launched")
    until((tmp_path / "pid").exists, "the prolog to run")
    daemon.send(op="terminate", job=1, gen=1, grace_s=grace_s)
    assert daemon.expect("batch_ended")["ordered"]
    daemon.expect("cleared")
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "out").exists()


def test_a_job_that_is_ended_has_its_task_epilog(daemon: DaemonEnd, tmp_path: Path) -> None:
    epilog = task_script(tmp_path / "epilog", f"echo done > {tmp_path}/done")
    script = "#!/bin/bash\ntouch begun\nsleep 1000 & wait\n"
    daemon.start_job(1, script, tmp_path / "out", task_epilog=epilog)
    daemon.expect("launched")
    until((tmp_path / "begun").exists, "the script to run")
    daemon.send(op="terminate", job=1, gen=1, grace_s=1000)
    assert daemon.expect("batch_ended")["status"]["signal"] == signal.SIGTERM
    daemon.expect("cleared")
    assert (tmp_path / "done").read_text() == "done\n"
