"""srun: runs tasks, in the job it is called from or in one of its own, and looks like them to its caller.

Options become steps (`slurm/options`); the daemon lays them out; the agents run them; `session` carries their
output, input, signals and ends. Here: the order of these things, and Slurm's words where one of them fails.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from bireme.agent.stdio.stream_client import Fences, StepStreams
from bireme.cli.connection import make_transport
from bireme.cli.interactive.allocation import Allocation, Interrupted
from bireme.cli.interactive.session.session import Leg, Manners, Session
from bireme.cli.interactive.session.streams import choose_input, open_outputs, sent_to_nodes
from bireme.cli.interactive.session.tally import Tally
from bireme.cli.interactive.session.terminal import RawTerminal, window_size
from bireme.client.transport import ApiError, BiremeError, BiremeUnavailable, Transport
from bireme.commands.sbatch import answered_at_once
from bireme.commands.submitting.caller import plain, submit_context
from bireme.commands.submitting.submission import interactive_body, submit, tell_of_engine, tell_options, test_only
from bireme.commands.voice import CommandFailure, Voice, refused_by_daemon, run_command
from bireme.core.model.steps import StepSpec
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.catalogue.words import SUBMISSION_FAILED
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.interactive import RunSubmission, read_run
from bireme.slurm.options.layers import Options, peek
from bireme.slurm.options.step import COLUMNS_VARIABLE, ROWS_VARIABLE, StepRequest

_RETRY_WAIT_S = 60.0
_VERDICT_PATIENCE_S = 10.0
_BUSY = frozenset({"ESLURM_NODES_BUSY", "ESLURM_JOB_SUSPENDED"})
_NO_SUCH_ALLOCATION = frozenset({"ESLURM_INVALID_JOB_ID", "ESLURM_ALREADY_DONE", "ESLURM_JOB_PENDING"})


def main(argv: list[str]) -> int:
    return run_command("srun", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    if answer := answered_at_once(Command.SRUN, peek(Command.SRUN, argv)):
        print(answer, end="")
        return 0
    context = submit_context(Command.SRUN, argv)
    asked = read_run(argv, context)
    options = asked.options[0]
    voice = Voice("srun", quiet=options.flag("quiet"), verbose=options.times("verbose"))
    for notice in asked.notices:
        voice.say(notice)
    tell_options(voice, options)
    for step in asked.steps:
        _check_programs(step)
    with make_transport() as transport:
        tell_of_engine(voice, transport, asked.options, step=not asked.jobs)
        if options.flag("test-only"):
            return _test_only(transport, asked, voice)
        if asked.jobs:
            return _run_in_own_job(transport, asked, voice)
        return _run_steps(transport, asked, _jobs_inside(argv, context, asked), voice)[0]


def _check_programs(step: StepRequest) -> None:
    """--multi-prog must name a program for every task: said before anything is allocated."""
    spec = step.spec
    if not spec.multi_prog:
        return
    # Late: few steps have such a file.
    from bireme.engines.crew.multi_prog import MultiProgError, programs

    try:
        programs(spec.multi_prog, spec.ntasks or (spec.nodes_min or 1) * (spec.ntasks_per_node or 1))
    except MultiProgError as error:
        named = str(error).replace("onfiguration file", f"onfiguration file {spec.argv[0]}", 1)
        blamed = [f"Line {error.line} of configuration file {spec.argv[0]} invalid"] if error.line else []
        raise CommandFailure(named, *blamed) from error


def _test_only(transport: Transport, asked: RunSubmission, voice: Voice) -> int:
    if asked.jobs:
        return test_only(transport, interactive_body(transport, asked), voice)
    voice.say(f"Job {asked.steps[0].job_id} is running already: nothing to test")
    return 0


def _jobs_inside(argv: list[str], context: SubmitContext, asked: RunSubmission) -> list[tuple[str, StepRequest]]:
    """(job, step) for each step: its het group's component, or the job itself."""
    leader = os.environ.get("SLURM_HET_JOB_ID") or os.environ.get("SLURM_JOB_ID_HET_GROUP_0")
    if leader is None:
        return [(str(step.job_id), step) for step in asked.steps]
    found: list[tuple[str, StepRequest]] = []
    for index, step in enumerate(asked.steps):
        for group in step.het_group or ((index,) if len(asked.steps) > 1 else ()):
            seen = replace(context, environment=seen_from_group(context.environment, group))
            fitted = read_run(argv, seen).steps[index]
            found.append((f"{leader}+{group}", replace(fitted, environment=step.environment)))
    return found or [(f"{leader}+0", asked.steps[0])]


def seen_from_group(environment: Mapping[str, str], group: int) -> dict[str, str]:
    """The environment in which a component's numbers stand where the first one's did; what it did not ask for, none."""
    ending = f"_HET_GROUP_{group}"
    own = {name.removesuffix(ending): value for name, value in environment.items() if name.endswith(ending)}
    of_components = {name.partition("_HET_GROUP_")[0] for name in environment if "_HET_GROUP_" in name}
    return {**{name: value for name, value in environment.items() if name not in of_components}, **own}


def _run_in_own_job(transport: Transport, asked: RunSubmission, voice: Voice) -> int:
    job_id = submit(
        transport,
        interactive_body(transport, asked),
        SUBMISSION_FAILED[Command.SRUN],
        voice,
    )
    allocation = Allocation(transport, job_id, voice)
    code = 1
    try:
        allocation.hold()
        _await_allocation(allocation, asked.options[0])
        if len(asked.steps) == 1:
            places = [(str(job_id), _for_own_job(asked.steps[0], asked.options[0]))]
        else:
            places = [
                (f"{job_id}+{index}", _for_own_job(step, asked.options[index]))
                for index, step in enumerate(asked.steps)
            ]
        code, lost_nodes = _run_steps(transport, asked, places, voice)
        if lost_nodes:  # how the job ended is the daemon's to say: NODE_FAIL, not our exit code
            allocation.ended.wait(_VERDICT_PATIENCE_S)
    finally:
        allocation.release(code)
    return code


def _await_allocation(allocation: Allocation, options: Options) -> None:
    try:
        allocation.await_start_or_signal(options.number("immediate"), announce_pending=False)
    except Interrupted:
        raise CommandFailure(f"srun: Job allocation {allocation.job_id} has been revoked", bare=True) from None


def _for_own_job(step: StepRequest, options: Options) -> StepRequest:
    """In a job of its own the step has all of it: --exclusive was about the nodes, --immediate about the job. Of whole
    nodes for a number of tasks the step has what these need, as in Slurm."""
    asked = options.flag("exact") or options.asked("cpus-per-task")
    exact = step.spec.exact and (asked or ("exclusive" in options and options.asked("ntasks")))
    spec = replace(step.spec, exclusive=False, exact=exact, immediate_s=None, nodelist=(), exclude=())
    return replace(step, spec=spec)


# --- steps -------------------------------------------------------------------------------------------------


class StepControl:
    """A step as the daemon knows it."""

    def __init__(self, transport: Transport, job: str, created: dict[str, Any]) -> None:
        self._home = transport.paths.home
        self._path = f"/v1/jobs/{job}/steps/{created['step_id']}/cancel"
        self.name = f"{created['job_id']}.{created['step_id']}"

    def terminate(self, *, failed: bool = False) -> bool:
        # A connection of its own: this may be called while another request is under way.
        try:
            with Transport(self._home, patience_s=5.0, timeout_s=5.0) as transport:
                transport.post(self._path, {"failed": True} if failed else {"signal": None})
        except BiremeUnavailable:
            return False
        except BiremeError:  # it is over already, or not ours to end: the daemon knows better
            return True
        return True

    def settings(self) -> dict[str, Any]:
        with suppress(BiremeError), Transport(self._home, timeout_s=5.0) as transport:
            return dict(transport.get("/v1/config")["settings"])
        return {}


def _run_steps(
    transport: Transport, asked: RunSubmission, places: list[tuple[str, StepRequest]], voice: Voice
) -> tuple[int, list[str]]:
    """(exit code, nodes that were lost)."""
    options = asked.options[0]
    _run_local(options.text("prolog"))
    with ExitStack() as held:
        legs: list[Leg] = []
        node_of: dict[int, str] = {}
        parts = [_part(job, step) for job, step in places]
        fences = Fences()
        for (job, spec, _), created in zip(parts, create_steps(transport, parts, voice)):
            endpoints = {place["node"]: place["endpoint"] for place in created["nodes"]}
            streams = StepStreams(created["job_id"], created["step_id"], spec.io_key, endpoints, fences)
            held.enter_context(streams).connect()
            first = len(node_of)
            legs.append(Leg(streams, StepControl(transport, job, created), first))
            node_of |= {first + task: place["node"] for place in created["nodes"] for task in place["tasks"]}
        tally = Tally(node_of)
        code = _attend(legs, tally, places[0][1].spec, options, voice)
    _run_local(options.text("epilog"))
    return code, tally.lost_nodes


def _window_variables(spec: StepSpec) -> dict[str, str]:
    """How large our terminal is, for the one that the task gets: a program may ask before we can say."""
    size = window_size(0) if spec.pty else None
    return {} if size is None else {ROWS_VARIABLE: str(size[0]), COLUMNS_VARIABLE: str(size[1])}


Part = tuple[str, StepSpec, dict[str, str]]
"""A job (or a component of a heterogeneous one), what is to run there, and the variables of its tasks."""


def _part(job: str, step: StepRequest) -> Part:
    spec = sent_to_nodes(replace(step.spec, io_key=os.urandom(16).hex()))
    return job, spec, {**step.environment, **_window_variables(spec)}


def create_steps(transport: Transport, parts: list[Part], voice: Voice) -> list[dict[str, Any]]:
    """The daemon's answers: step id and where its tasks are. Waits while other steps use what they need.

    Several parts are one step, which begins in all components or in none.
    """
    bodies = [{"job": job, "spec": plain(spec), "environment": environment} for job, spec, environment in parts]
    if len(bodies) == 1:
        return [_created(transport, parts[0], bodies[0], voice)]
    return list(_created(transport, parts[0], {"het": bodies}, voice)["parts"])


def _created(transport: Transport, part: Part, body: dict[str, Any], voice: Voice) -> dict[str, Any]:
    job, spec, _ = part
    told = False
    while True:
        params = {"wait": _RETRY_WAIT_S} if told else None
        try:
            created = transport.post(f"/v1/jobs/{job}/steps", body, params, timeout_s=_RETRY_WAIT_S + 60)
        except BiremeUnavailable as error:
            raise refused_by_daemon(f"Unable to create step for job {job}", error) from error
        except ApiError as error:
            if error.code not in _BUSY or spec.immediate_s is not None:
                raise _step_refused(job, error) from error
            if not told:
                voice.say(f"Job {job} step creation temporarily disabled, retrying ({error.message})")
            told = True
            continue
        if told:
            voice.say(f"Step created for job {job}")
        return dict(created)


def _step_refused(job: str, error: ApiError) -> CommandFailure:
    if error.code in _NO_SUCH_ALLOCATION:
        over = error.code == "ESLURM_ALREADY_DONE"
        return CommandFailure(
            f"Slurm job {job} has expired" if over else f"Unable to confirm allocation for job {job}: {error.message}",
            hint=f"Check SLURM_JOB_ID environment variable. Expired or invalid job {job}",
        )
    return refused_by_daemon(f"Unable to create step for job {job}", error)


def _attend(legs: list[Leg], tally: Tally, spec: StepSpec, options: Options, voice: Voice) -> int:
    """Everything while the tasks run."""
    manners = Manners(
        pty=spec.pty,
        kill_on_bad_exit=spec.kill_on_bad_exit if "kill-on-bad-exit" in options else None,
        wait_s=spec.wait_s or 0,
        disable_status=options.flag("disable-status"),
        quit_on_interrupt=options.flag("quit-on-interrupt"),
    )
    manners.stdin_fd, manners.stdin_task = choose_input(spec)
    job_id, _, step_id = legs[0].control.name.partition(".")
    stdout, stderr = open_outputs(spec, int(job_id), int(step_id), tally.ntasks)
    session = Session(legs, tally, stdout, stderr, voice, manners)
    stdout.on_closed(session.reader_gone)
    terminal = RawTerminal(0)
    if spec.pty:
        voice.line_end = "\r\n" if terminal.enter() else "\n"
        size = window_size(0)
        if size is not None:
            legs[0].streams.send_window_size(*size)
    try:
        return session.run()
    except KeyboardInterrupt:
        for leg in legs:
            with suppress(BiremeError):
                leg.control.terminate()
        return 130
    finally:
        terminal.restore()


def _run_local(program: str) -> None:
    """--prolog and --epilog of srun run here, around the step."""
    if program and program.lower() != "none":
        import subprocess  # late: few have one, and srun starts often

        subprocess.run([program], check=False)
