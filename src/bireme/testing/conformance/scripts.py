"""The second half of the conformance suite: a cluster that runs on the engine, used as people use it.

Scripts are submitted with `sbatch`, results are seen with `sacct`, `squeue` and in files; the daemon is killed and
started. Whoever writes an engine subclasses `Deployment` and runs every check of `SCRIPT_CHECKS` with
`run_script_check`; one deployment may serve them all, one after the other.
Invariant: a check uses folders and names of its own, and ends what it started.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from bireme.core.jobs.states import FINAL_STATES
from bireme.testing.conformance.checks import Check, CheckList
from bireme.testing.conformance.programs import Program


class Deployment(ABC):
    """A cluster whose daemon uses the engine, and the commands of its users."""

    places_by_itself: bool = False
    nodes: tuple[str, ...] = ("n1", "n2")
    """Two or more, as the cluster names them."""
    inapplicable: Mapping[str, str] = {}
    """Names of checks that say nothing about this engine -> why."""
    inapplicable_to_services: Mapping[str, str] = {}
    """The same, of the checks of services."""
    patience_s: float = 120.0
    python: str = "python3"
    """A Python that jobs can run (services of the suite are written in it)."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """A folder that this process and every job sees under the same name."""

    @abstractmethod
    def run(self, *argv: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs one of the commands as a user; with `check`, a failure is an AssertionError with its words."""

    @abstractmethod
    def kill_daemon(self) -> None:
        """kill -9; returns when it is gone."""

    @abstractmethod
    def stop_daemon(self) -> None:
        """As an operator stops it: jobs run on."""

    @abstractmethod
    def start_daemon(self) -> None:
        """Starts it again; returns when it answers."""

    @abstractmethod
    def restart_node(self, node: str) -> None:
        """The node dies with everything on it, and comes back without a memory of it."""

    @abstractmethod
    def is_clear(self, job: str) -> bool:
        """No process, container or pod of this job is left."""

    def limited(self, session: Session, program: Program) -> str:
        """Submits with the shortest time limit that the engine keeps. Override it where a minute is not the least."""
        return session.submit(program, "--time=1")


class Session:
    """One check's use of the cluster: a folder of its own, and what people do there."""

    def __init__(self, cluster: Deployment, name: str) -> None:
        self.cluster = cluster
        self.folder = cluster.folder / name
        self.folder.mkdir()
        self._jobs: list[str] = []
        self._scripts = 0

    def close(self) -> None:
        self.open_gate("never")
        if self._jobs:  # also those that failed: they may be about to be started again
            self.run("scancel", *self._jobs, check=False)
        for job in self._jobs:
            self.ended(job)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- doing ---------------------------------------------------------------------------------------------------------

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(*argv, cwd=self.folder, check=check)

    def submit(self, program: Program | str, *options: str) -> str:
        """sbatch; the job's id. Text is a script as it is."""
        self._scripts += 1
        script = self.folder / f"script{self._scripts}.sh"
        script.write_text(program if isinstance(program, str) else program.script)
        said = self.run("sbatch", "--parsable", *options, str(script)).stdout
        job = said.strip().partition(";")[0]
        self._jobs.append(job)
        return job

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()

    # -- seeing --------------------------------------------------------------------------------------------------------

    def until(self, is_so: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + self.cluster.patience_s
        while not is_so():
            if time.monotonic() >= deadline:
                queue = self.run("squeue", "-o", "%i %j %T %r %N", check=False).stdout
                raise AssertionError(f"did not come about: {what}; the queue:\n{queue}")
            time.sleep(0.05)

    def sacct(self, job: str, fields: str, *options: str) -> list[list[str]]:
        said = self.run("sacct", "-n", "-P", *options, "-j", job, "-o", fields, check=False).stdout
        return [line.split("|") for line in said.splitlines()]

    def state(self, job: str) -> str:
        """Slurm's word, without who cancelled it; empty while nobody knows the job."""
        rows = self.sacct(job, "State", "-X")
        return rows[0][0].partition(" ")[0] if rows else ""

    def until_state(self, job: str, *states: str) -> None:
        self.until(lambda: self.state(job) in states, f"job {job} is {self.state(job)}, not {' or '.join(states)}")

    def ended(self, job: str) -> tuple[str, str]:
        """(state, exit code as N:S) once it is over, every task of it if it is an array."""
        self.until(lambda: self._all_over(job), f"the end of job {job}: {self.sacct(job, 'JobID,State', '-X')}")
        row = self.sacct(job, "State,ExitCode", "-X")[0]
        return row[0].partition(" ")[0], row[1]

    def _all_over(self, job: str) -> bool:
        rows = self.sacct(job, "State", "-X")
        return bool(rows) and all(row[0].partition(" ")[0] in FINAL_STATES for row in rows)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def until_said(self, name: str, line: str) -> None:
        self.until(lambda: line in self.lines(name), f"{line!r} in {name}, which has {self.lines(name)}")

    def runs(self, job: str) -> int:
        return len(self.lines(f"ran.{job}"))


ScriptBody = Callable[[Session], None]
SCRIPT_CHECKS: CheckList[ScriptBody] = CheckList()


def run_script_check(check: Check[ScriptBody], cluster: Deployment) -> None:
    """Raises AssertionError, or NotApplicable with the reason."""
    check.require(places_by_itself=cluster.places_by_itself, inapplicable=cluster.inapplicable)
    unknown = [name for name in cluster.inapplicable if name not in SCRIPT_CHECKS]
    assert not unknown, f"no such checks: {unknown}"
    session = Session(cluster, check.name)
    try:
        check.body(session)
    finally:
        session.close()


# -- how jobs end --------------------------------------------------------------------------------------------------


@SCRIPT_CHECKS.say()
def exit_codes_and_signals_are_told(session: Session) -> None:
    good = session.submit(Program())
    bad = session.submit(Program(exits=7))
    killed = session.submit(Program(dies_of=11))
    assert session.ended(good) == ("COMPLETED", "0:0")
    assert session.ended(bad) == ("FAILED", "7:0")
    assert session.ended(killed) == ("FAILED", "0:11")


@SCRIPT_CHECKS.say()
def output_goes_to_the_files_that_were_named(session: Session) -> None:
    plain = session.submit(Program(says="plain words"))
    script = "#!/bin/bash\necho out; echo err >&2\n"
    named = session.submit(script, "--output=%x-%j.out", "--error=%x-%j.err", "--job-name=named")
    for job in (plain, named):
        assert session.ended(job) == ("COMPLETED", "0:0")
    session.until_said(f"slurm-{plain}.out", "plain words")
    session.until_said(f"named-{named}.out", "out")
    session.until_said(f"named-{named}.err", "err")


@SCRIPT_CHECKS.say()
def scancel_ends_a_running_job_and_all_of_it(session: Session) -> None:
    script = "#!/bin/bash\nsleep 600 &\necho ready\nwait\n"
    job = session.submit(script, "--output=out")
    session.until_said("out", "ready")
    session.run("scancel", job)
    state, code = session.ended(job)
    assert state == "CANCELLED", f"{state} {code}"
    session.until(lambda: session.cluster.is_clear(job), "no process of it")


@SCRIPT_CHECKS.say()
def scancel_of_a_waiting_job_leaves_no_run(session: Session) -> None:
    job = session.submit(Program(), "--hold")
    session.until_state(job, "PENDING")
    session.run("scancel", job)
    assert session.ended(job)[0] == "CANCELLED"
    assert session.runs(job) == 0


@SCRIPT_CHECKS.say()
def a_signal_reaches_the_script(session: Session) -> None:
    job = session.submit(Program(waits_for="never", on_signal=((10, 5),), says="listening"), "--output=out")
    session.until_said("out", "listening")
    session.run("scancel", "--batch", "--signal=USR1", job)
    assert session.ended(job) == ("FAILED", "5:0")


@SCRIPT_CHECKS.say()
def a_time_limit_ends_a_job(session: Session) -> None:
    job = session.cluster.limited(session, Program(waits_for="never"))
    assert session.ended(job)[0] == "TIMEOUT"
    session.until(lambda: session.cluster.is_clear(job), "no process of it")


# -- order and number ----------------------------------------------------------------------------------------------


@SCRIPT_CHECKS.say()
def an_array_runs_every_task_once(session: Session) -> None:
    script = '#!/bin/bash\necho "$SLURM_ARRAY_TASK_ID" >> tasks\nexit "$SLURM_ARRAY_TASK_ID"\n'
    job = session.submit(script, "--array=0-3")
    session.ended(job)
    assert sorted(session.lines("tasks")) == ["0", "1", "2", "3"]
    codes = {row[0]: row[1] for row in session.sacct(job, "JobID,ExitCode", "-X")}
    assert codes == {f"{job}_{task}": f"{task}:0" for task in range(4)}


@SCRIPT_CHECKS.say()
def a_dependency_waits_and_one_that_cannot_be_met_never_runs(session: Session) -> None:
    first = session.submit(Program(waits_for="gate", exits=1))
    after_bad = session.submit(Program(), f"--dependency=afternotok:{first}")
    after_good = session.submit(Program(), f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes")
    session.until_state(first, "RUNNING")
    assert session.runs(after_bad) == 0
    session.open_gate("gate")
    assert session.ended(after_bad) == ("COMPLETED", "0:0")
    assert session.ended(after_good)[0] == "CANCELLED"
    assert session.runs(after_good) == 0


@SCRIPT_CHECKS.say()
def a_held_job_waits_until_it_is_released(session: Session) -> None:
    job = session.submit(Program(), "--hold")
    session.until_state(job, "PENDING")
    session.run("scontrol", "release", job)
    assert session.ended(job) == ("COMPLETED", "0:0")


@SCRIPT_CHECKS.say()
def a_requeued_job_runs_again_and_knows_it(session: Session) -> None:
    script = "#!/bin/bash\necho restarts ${SLURM_RESTART_COUNT:-0} >> log\nwhile [ ! -e gate ]; do sleep 0.05; done\n"
    job = session.submit(script, "--requeue")
    session.until_said("log", "restarts 0")
    session.run("scontrol", "requeue", job)
    session.until_said("log", "restarts 1")
    session.open_gate("gate")
    assert session.ended(job) == ("COMPLETED", "0:0")
    assert session.lines("log") == ["restarts 0", "restarts 1"]


# -- gangs and steps -----------------------------------------------------------------------------------------------


@SCRIPT_CHECKS.say()
def a_gang_has_all_its_nodes(session: Session) -> None:
    script = "#!/bin/bash\necho nodes $SLURM_JOB_NUM_NODES\nsrun bash -c 'echo $SLURM_PROCID $SLURMD_NODENAME'\n"
    job = session.submit(script, "--nodes=2", "--ntasks=2", "--output=out")
    assert session.ended(job) == ("COMPLETED", "0:0")
    session.until_said("out", "nodes 2")
    tasks = [line.split() for line in session.lines("out") if line[0].isdigit()]
    assert sorted(number for number, _ in tasks) == ["0", "1"]
    assert len({node for _, node in tasks}) == 2, "two tasks on two nodes"


@SCRIPT_CHECKS.say(placed=True)
def a_gang_goes_where_it_was_told(session: Session) -> None:
    chosen = session.cluster.nodes[1]
    job = session.submit('#!/bin/bash\necho "on $SLURMD_NODENAME"\n', f"--nodelist={chosen}", "--output=out")
    assert session.ended(job) == ("COMPLETED", "0:0")
    session.until_said("out", f"on {chosen}")


@SCRIPT_CHECKS.say()
def steps_are_counted_and_their_codes_told(session: Session) -> None:
    script = "#!/bin/bash\nsrun -n1 true\nsrun -n1 bash -c 'exit 3'\necho code $?\nexit 0\n"
    job = session.submit(script, "--output=out")
    assert session.ended(job) == ("COMPLETED", "0:0")
    session.until_said("out", "code 3")
    steps = {row[0]: (row[1], row[2]) for row in session.sacct(job, "JobID,State,ExitCode")}
    assert steps[f"{job}.0"] == ("COMPLETED", "0:0")
    assert steps[f"{job}.1"] == ("FAILED", "3:0")


@SCRIPT_CHECKS.say()
def a_suspended_job_stands_still_and_goes_on(session: Session) -> None:
    job = session.submit(Program(waits_for="gate", beats=True))
    session.until(lambda: session.lines(f"beats.{job}"), "its first beat")
    session.run("scontrol", "suspend", job)
    session.until_state(job, "SUSPENDED")
    seen: list[int] = []
    session.until(lambda: _same(seen, len(session.lines(f"beats.{job}"))), "a moment without a beat")
    session.run("scontrol", "resume", job)
    session.until(lambda: len(session.lines(f"beats.{job}")) > seen[-1], "the next beat")
    session.open_gate("gate")
    assert session.ended(job) == ("COMPLETED", "0:0")


def _same(seen: list[int], now: int, looks: int = 10) -> bool:
    """Whether so many looks in a row saw the same."""
    seen.append(now)
    return len(seen) >= looks and len(set(seen[-looks:])) == 1


# -- the daemon goes and comes -------------------------------------------------------------------------------------


@SCRIPT_CHECKS.say()
def a_job_outlives_a_killed_daemon_and_runs_once(session: Session) -> None:
    job = session.submit(Program(waits_for="gate", exits=6))
    session.until(lambda: session.runs(job), "its start")
    session.cluster.kill_daemon()
    session.cluster.start_daemon()
    session.until_state(job, "RUNNING")
    session.open_gate("gate")
    assert session.ended(job) == ("FAILED", "6:0")
    assert session.runs(job) == 1


@SCRIPT_CHECKS.say()
def the_end_of_a_job_while_no_daemon_was_there_is_known_later(session: Session) -> None:
    script = "#!/bin/bash\ntouch begun\nwhile [ ! -e gate ]; do sleep 0.05; done\ntouch over\nexit 5\n"
    job = session.submit(script)
    session.until(lambda: (session.folder / "begun").exists(), "its start")
    session.cluster.stop_daemon()
    session.open_gate("gate")
    session.until(lambda: (session.folder / "over").exists(), "its end")
    session.cluster.start_daemon()
    assert session.ended(job) == ("FAILED", "5:0")


@SCRIPT_CHECKS.say()
def nothing_that_was_accepted_is_lost_when_the_daemon_is_killed(session: Session) -> None:
    """Killed in the middle of launches: each of them runs, and none of them twice."""
    jobs = [session.submit(Program(exits=number)) for number in range(1, 7)]
    session.cluster.kill_daemon()
    session.cluster.start_daemon()
    assert [session.ended(job) for job in jobs] == [("FAILED", f"{number}:0") for number in range(1, 7)]
    assert [session.runs(job) for job in jobs] == [1] * 6


# -- nodes -------------------------------------------------------------------------------------------------------------


@SCRIPT_CHECKS.say()
def a_node_that_restarted_ends_its_jobs_or_brings_them_back(session: Session) -> None:
    once = session.submit(Program(waits_for="gate"), "--no-requeue")
    again = session.submit(Program(waits_for="gate"), "--requeue")
    session.until(lambda: session.runs(once) and session.runs(again), "their starts")
    for job in (once, again):
        session.until_state(job, "RUNNING")  # the engine may hear of it a little later than we see its file
    where = {row[0] for job in (once, again) for row in session.sacct(job, "NodeList", "-X")}
    for node in where:
        session.cluster.restart_node(node)
    assert session.ended(once)[0] == "NODE_FAIL"
    session.until(lambda: session.runs(again) == 2, "its second run")
    session.open_gate("gate")
    assert session.ended(again) == ("COMPLETED", "0:0")
    assert session.runs(once) == 1


@SCRIPT_CHECKS.say()
def a_launch_that_cannot_be_done_is_told_and_holds_nothing(session: Session) -> None:
    """A folder that cannot be there: Slurm runs the script elsewhere or fails it; the nodes serve on either way."""
    job = session.submit(Program(), "--chdir=/dev/null/folder", "--output=/dev/null/file")
    state, _ = session.ended(job)
    assert state in ("FAILED", "COMPLETED", "CANCELLED")
    after = session.submit(Program())
    assert session.ended(after) == ("COMPLETED", "0:0")
