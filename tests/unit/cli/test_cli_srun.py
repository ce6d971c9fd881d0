"""srun: what it does with output, ends, signals and refusals. The agents are played by a script of frames."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.agent.messages import protocol
from bireme.agent.stdio.stream_client import LOST, Frame
from bireme.cli.interactive.session.outputs import Output, Style
from bireme.cli.interactive.session.session import Leg, Manners, Session
from bireme.cli.interactive.session.streams import choose_input, open_outputs, opened_here, sent_to_nodes
from bireme.cli.interactive.session.tally import Tally, TaskEnd, ranges_text, tasks_text
from bireme.cli.interactive.srun import main, seen_from_group
from bireme.commands.voice import CommandFailure, Voice
from bireme.core.model.steps import StepSpec

ALL = protocol.ALL_TASKS


# --- output ------------------------------------------------------------------------------------------------


def shown(style: Style, pieces: Iterable[tuple[int, bytes]], *, only_task: int | None = None) -> bytes:
    read, write = os.pipe()
    output = Output(write, style, only_task=only_task)
    for task, data in pieces:
        output.write(task, data)
    output.finish_all()
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


def test_labels_are_as_wide_as_the_largest_task_number() -> None:
    assert shown(Style(label=True, ntasks=2), [(0, b"a\nb\n")]) == b"0: a\n0: b\n"
    assert shown(Style(label=True, ntasks=12), [(3, b"x\n"), (11, b"y\n")]) == b" 3: x\n11: y\n"


def test_lines_of_tasks_never_mix_however_they_arrive() -> None:
    pieces = [(0, b"first ha"), (1, b"other\n"), (0, b"lf\nrest")]
    assert shown(Style(by_line=True, ntasks=2), pieces) == b"other\nfirst half\nrest"
    assert shown(Style(label=True, ntasks=2), pieces) == b"1: other\n0: first half\n0: rest\n"


def test_a_single_task_is_passed_through_as_it_comes() -> None:
    assert shown(Style(), [(0, b"prompt> ")]) == b"prompt> "


def test_one_task_of_several() -> None:
    assert shown(Style(ntasks=2), [(0, b"a\n"), (1, b"b\n")], only_task=1) == b"b\n"


def test_a_reader_that_went_away_is_noticed_once() -> None:
    read, write = os.pipe()
    os.close(read)
    output, noticed = Output(write, Style()), []
    output.on_closed(lambda: noticed.append(1))
    output.write(0, b"x")
    output.write(0, b"x")
    os.close(write)
    assert noticed == [1]


@pytest.mark.parametrize(
    ("pattern", "here"),
    [("", False), ("none", False), ("3", False), ("o_%t", False), ("%N.log", False), ("o-%j.txt", True)],
)
def test_which_files_srun_opens_itself(pattern: str, here: bool) -> None:
    assert opened_here(pattern, "/home/ada") is here


@pytest.mark.parametrize(
    ("pattern", "here"), [("/data/x", True), ("x", False), ("../data/x", True), ("/dev/null", True)]
)
def test_in_a_pod_srun_opens_what_lies_on_a_volume(monkeypatch: pytest.MonkeyPatch, pattern: str, here: bool) -> None:
    monkeypatch.setenv("BIREME_VOLUMES", "/data:/scratch")
    assert opened_here(pattern, "/home") is here


def test_files_of_srun_are_not_opened_by_the_nodes() -> None:
    sent = sent_to_nodes(StepSpec(std_out="all.txt"))
    assert (sent.std_out, sent.std_err) == ("", "")
    sent = sent_to_nodes(StepSpec(std_out="o_%t", std_err="err.txt"))
    assert (sent.std_out, sent.std_err) == ("o_%t", "all")


def test_one_file_for_both_streams(tmp_path: Path) -> None:
    spec = StepSpec(std_out="out-%j.%s", work_dir=str(tmp_path), label=True)
    stdout, stderr = open_outputs(spec, 42, 7, 2)
    assert stdout is stderr
    stdout.write(0, b"hello\n")
    assert (tmp_path / "out-42.7").read_text() == "0: hello\n"


def test_input_that_cannot_be_read_is_refused_here_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(CommandFailure, match="Could not open stdin file nope: No such file or directory"):
        sent_to_nodes(StepSpec(std_in="nope", work_dir=str(tmp_path)))
    assert choose_input(StepSpec(std_in="none")) == (None, ALL)
    (tmp_path / "file").touch(mode=0)
    with pytest.raises(CommandFailure, match="Could not open stdin file file/x: Not a directory"):
        sent_to_nodes(StepSpec(std_in="file/x", work_dir=str(tmp_path)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as somebody else")
def test_input_without_permission_is_called_that() -> None:
    code = (
        "from bireme.cli.interactive.session.streams import sent_to_nodes\n"
        "from bireme.core.model.steps import StepSpec\n"
        "import os; os.setuid(65534)\n"
        "sent_to_nodes(StepSpec(std_in='/etc/shadow'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Could not open stdin file /etc/shadow: Permission denied" in done.stderr


# --- the tally ---------------------------------------------------------------------------------------------


def test_ends_that_come_together_share_a_line() -> None:
    tally = Tally({0: "n1", 1: "n1", 2: "n2"})
    for task in range(3):
        tally.end(task, TaskEnd(0, signal.SIGTERM))
    assert tally.take_untold() == [("n1", [0, 1], TaskEnd(0, 15)), ("n2", [2], TaskEnd(0, 15))]
    assert tally.take_untold() == []


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([TaskEnd(0, 0), TaskEnd(0, 0)], 0),
        ([TaskEnd(1, 0), TaskEnd(3, 0)], 3),
        ([TaskEnd(5, 0), TaskEnd(0, 15)], 143),
        ([TaskEnd(0, 9), TaskEnd(0, 11)], 139),
    ],
)
def test_the_exit_code_is_the_largest(ends: list[TaskEnd], code: int) -> None:
    tally = Tally(dict.fromkeys(range(len(ends)), "n1"))
    for index, end in enumerate(ends):
        tally.end(index, end)
    assert tally.exit_code() == code


def test_words_of_ends() -> None:
    assert TaskEnd(2, 0).words() == "Exited with exit code 2"
    assert TaskEnd(0, 9).words() == "Killed"
    assert TaskEnd(0, 11).words() == "Segmentation fault"
    assert TaskEnd(0, 9, out_of_memory=True).words() == "Out Of Memory"
    assert ranges_text([5, 0, 1, 2]) == "0-2,5"
    assert tasks_text([3]) == "task 3"
    assert tasks_text([0, 1]) == "tasks 0-1"


def test_states_of_tasks() -> None:
    tally = Tally({0: "n1", 1: "n1", 2: "n1", 3: "n1"})
    tally.start([0, 1, 2])
    tally.end(1, TaskEnd(0, 0))
    tally.end(2, TaskEnd(1, 0))
    assert tally.state_lines("4.0") == [
        "StepId=4.0 task 0: running",
        "StepId=4.0 task 3: starting",
        "StepId=4.0 task 1: exited",
        "StepId=4.0 task 2: exited abnormally",
    ]


# --- the session -------------------------------------------------------------------------------------------

Turn = list[Frame] | Callable[[], list[Frame]]


@dataclass
class ScriptedStreams:
    """Stands in for StepStreams: each poll returns the next turn of the script."""

    turns: list[Turn]
    sent: list[tuple[str, Any]] = field(default_factory=list)
    watched: dict[int, object] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return not self.turns

    def poll(self, timeout_s: float | None = None) -> tuple[list[Frame], list[object]]:
        turn = self.turns.pop(0)
        frames = turn() if callable(turn) else turn
        return frames, ["signal"] if "signal" in self.watched.values() else []

    def watch(self, fd: int, tag: object) -> None:
        self.watched[fd] = tag

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def send_signal(self, number: int) -> None:
        self.sent.append(("signal", number))

    def send_stdin(self, data: bytes, task: int = ALL) -> None:
        self.sent.append(("stdin", (data, task)))

    def input_room(self) -> bool:
        return True


@dataclass
class ScriptedControl:
    name: str = "42.0"
    ended: list[bool] = field(default_factory=list)
    cluster: dict[str, Any] = field(default_factory=lambda: {"kill_wait_s": 5})

    def terminate(self, *, failed: bool = False) -> bool:
        self.ended.append(failed)
        return True

    def settings(self) -> dict[str, Any]:
        return self.cluster


def exited(task: int, code: int = 0, signal_: int = 0, node: str = "n1") -> Frame:
    return Frame(node, protocol.TASK_EXITED, task, b'{"code":%d,"signal":%d,"oom":false}' % (code, signal_))


def interrupt() -> list[Frame]:
    os.kill(os.getpid(), signal.SIGINT)
    return []


def attend(turns: list[Turn], **manners: Any) -> tuple[int, ScriptedStreams, ScriptedControl]:
    streams, control = ScriptedStreams(turns), ScriptedControl()
    style = Style(ntasks=2, by_line=True)
    session = Session(
        [Leg(streams, control)],  # type: ignore[arg-type]  (a stand-in)
        Tally({0: "n1", 1: "n1"}),
        Output(1, style),
        Output(2, style),
        Voice("srun"),
        Manners(**manners),
        clock=iter(range(1, 1000)).__next__ if manners.get("wait_s") else lambda: 0.0,
    )
    return session.run(), streams, control


def test_output_and_ends_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    code, streams, _ = attend(
        [[Frame("n1", protocol.STDOUT, 0, b"hi\n"), Frame("n1", protocol.STDERR, 1, b"oh")], [exited(0), exited(1, 2)]]
    )
    said = capfd.readouterr()
    assert code == 2
    assert said.out == "hi\n"
    assert said.err == "ohsrun: error: n1: task 1: Exited with exit code 2\n"
    assert ("stdin", (b"", ALL)) in streams.sent


def test_the_first_interrupt_reports_and_the_second_ends(capfd: pytest.CaptureFixture[str]) -> None:
    started = Frame("n1", protocol.TASKS_STARTED, ALL, b'{"0":10,"1":11}')
    code, streams, control = attend([[started], interrupt, interrupt, [exited(0, signal_=2), exited(1, signal_=2)]])
    assert code == 130
    assert control.ended == [False]
    assert ("signal", signal.SIGINT) in streams.sent
    assert capfd.readouterr().err.splitlines()[:6] == [
        "srun: interrupt (one more within 1 sec to abort)",
        "srun: StepId=42.0 tasks 0-1: running",
        "srun: sending Ctrl-C to StepId=42.0",
        "srun: forcing job termination",
        "srun: Job step aborted: Waiting up to 7 seconds for job step to finish.",
        "srun: error: n1: tasks 0-1: Interrupt",
    ]


def test_user_signals_are_forwarded_and_term_ends_the_step(capfd: pytest.CaptureFixture[str]) -> None:
    def send(number: int) -> Callable[[], list[Frame]]:
        return lambda: os.kill(os.getpid(), number) or []  # type: ignore[func-returns-value]

    _, streams, control = attend([send(signal.SIGUSR1), send(signal.SIGTERM), [exited(0), exited(1)]])
    assert ("signal", signal.SIGUSR1) in streams.sent
    assert control.ended == [False]
    assert "srun: forcing job termination" in capfd.readouterr().err


def test_kill_on_bad_exit_by_option_or_by_the_clusters_setting() -> None:
    turns: list[Turn] = [[exited(0, 5)], [exited(1, signal_=15)]]
    assert attend(list(turns), kill_on_bad_exit=True)[2].ended == [True]
    assert attend(list(turns), kill_on_bad_exit=False)[2].ended == []
    assert attend(list(turns), kill_on_bad_exit=None)[2].ended == []


def test_wait_ends_the_others_after_the_first(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, control = attend([[exited(0)], [], [], [], [exited(1, signal_=9)]], wait_s=2)
    assert code == 137
    assert control.ended == [False]  # at once, not as after a failure
    said = capfd.readouterr().err
    assert "srun: First task exited 2s ago" in said
    assert "srun: Terminating StepId=" in said


@pytest.mark.parametrize(("task", "heard"), [(1, [1, None]), (3, [None, 1])])
def test_input_for_one_task_goes_to_the_component_that_has_it(task: int, heard: list[int | None]) -> None:
    """Tasks are counted over all components; each knows its own only."""
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"hello")
    os.close(write_fd)
    legs = [ScriptedStreams([[exited(0), exited(1)]]), ScriptedStreams([[exited(0), exited(1)]])]
    style = Style(ntasks=4, by_line=True)
    session = Session(
        [Leg(streams, ScriptedControl(), first) for streams, first in zip(legs, (0, 2), strict=True)],  # type: ignore[arg-type]  (a stand-in)
        Tally({0: "n1", 1: "n1", 2: "n2", 3: "n2"}),
        Output(1, style),
        Output(2, style),
        Voice("srun"),
        Manners(stdin_fd=read_fd, stdin_task=task),
    )
    session._begin_input()
    session._read_input()
    session._read_input()
    os.close(read_fd)
    data = [[to for _, (what, to) in streams.sent if what] for streams in legs]
    assert data == [[] if to is None else [to] for to in heard]
    ended = [[to for _, (what, to) in streams.sent if not what] for streams in legs]
    assert [sorted(each) for each in ended] == [[0, 1], [0, 1]], "each task's input ends once"


def test_a_lost_node_is_told_and_is_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, control = attend([[Frame("n1", LOST, ALL, b"connection refused")]])
    assert code == 1
    assert control.ended == [True]
    assert "srun: error: Node failure on n1: connection refused" in capfd.readouterr().err


# --- the command -------------------------------------------------------------------------------------------


def test_a_program_is_needed(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert capfd.readouterr().err == "srun: fatal: No command given to execute.\n"


def test_mpi_list(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--mpi=list"]) == 0
    assert capfd.readouterr().out.splitlines()[0] == "MPI plugin types are..."


def test_a_job_that_is_over(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("POST /v1/jobs/99/steps", "Invalid job id specified", "ESLURM_INVALID_JOB_ID", 404)
    assert main(["--jobid=99", "true"]) == 1
    assert capfd.readouterr().err == (
        "srun: error: Unable to confirm allocation for job 99: Invalid job id specified\n"
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 99\n"
    )


def test_a_busy_step_waits_and_says_so_once(daemon: FakeDaemon, capfd: pytest.CaptureFixture[str]) -> None:
    busy = (409, {"error": {"message": "Requested nodes are busy", "code": "ESLURM_NODES_BUSY"}})
    gone = (400, {"error": {"message": "Invalid node name specified", "code": "ESLURM_INVALID_NODE_NAME"}})
    answers = iter([busy, busy, gone])
    daemon.routes["POST /v1/jobs/7/steps"] = lambda _: next(answers)
    assert main(["--jobid=7", "true"]) == 1
    assert capfd.readouterr().err == (
        "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
        "srun: error: Unable to create step for job 7: Invalid node name specified\n"
    )


def test_multi_prog_must_name_every_task(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--multi-prog", "nofile"]) == 1
    assert capfd.readouterr().err == "srun: error: Could not open multi_prog config file nofile\n"
    Path("mp.conf").write_text("0-2 echo %t\n")
    assert main(["-n5", "--multi-prog", "mp.conf"]) == 1
    assert capfd.readouterr().err == "srun: error: Configuration file mp.conf invalid, no record for task id 3\n"


def test_the_component_of_a_heterogeneous_job_sees_its_own_numbers() -> None:
    environment = {"SLURM_NTASKS": "1", "SLURM_NTASKS_HET_GROUP_1": "2", "SLURM_NTASKS_HET_GROUP_0": "1"}
    assert seen_from_group(environment, 1)["SLURM_NTASKS"] == "2"
    asked = {"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_PER_TASK_HET_GROUP_0": "4"}
    assert "SLURM_CPUS_PER_TASK" not in seen_from_group({**environment, **asked}, 1)  # of the first component alone
