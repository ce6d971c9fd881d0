"""Which of a step's streams srun carries itself, and which the nodes open: --input, --output, --error.

A pattern with %t, %n or %N means a file for each task or node: the nodes open it. Any other file is opened here, so
that lines of all nodes go into one file, labelled if asked. What is not a file comes to our own stdout and stderr.
In a pod a file outside of its volumes would go with the pod: there the nodes are given it, and it comes back.
"""

from __future__ import annotations

import errno
import os
import pwd
from contextlib import suppress
from dataclasses import replace

from bireme.agent.messages.protocol import ALL_TASKS, VOLUMES_VARIABLE
from bireme.cli.interactive.session.outputs import Output, Style
from bireme.commands.voice import CommandFailure
from bireme.core.model.steps import StepSpec
from bireme.slurm.filenames import FilenameValues, expand_filename, specifiers

_FORWARD = "all"
_PER_TASK = frozenset("tnN")


def sent_to_nodes(spec: StepSpec) -> StepSpec:
    """The step with the files that srun opens itself taken out."""
    if spec.pty:
        return spec
    out = "" if opened_here(spec.std_out, spec.work_dir) else spec.std_out
    err = _FORWARD if opened_here(spec.std_err, spec.work_dir) else spec.std_err
    if not spec.std_err and opened_here(spec.std_out, spec.work_dir):
        err = ""
    return replace(spec, std_out=out, std_err=err, std_in=_input_path(spec))


def opened_here(pattern: str, work_dir: str) -> bool:
    """Whether srun writes this file."""
    if pattern in ("", "all", "none") or pattern.isdecimal():
        return False
    return not specifiers(pattern) & _PER_TASK and _stays(os.path.join(work_dir or os.getcwd(), pattern))


def _stays(path: str) -> bool:
    """False in a pod, where what is written to no volume goes with it."""
    volumes = os.environ.get(VOLUMES_VARIABLE)
    if volumes is None:
        return True
    kept = (f"{volume}/" for volume in volumes.split(":") if volume)
    return os.path.normpath(path).startswith(("/dev/", *kept))


def _input_path(spec: StepSpec) -> str:
    """The nodes open an input file; that it can be read is checked here, where the message reaches the user."""
    text = spec.std_in
    if text in ("", "all", "none") or text.isdecimal() or specifiers(text):
        return text
    path = os.path.join(spec.work_dir or os.getcwd(), text)
    if why := _unreadable(path):
        raise CommandFailure(f"Could not open stdin file {text}: {why}")
    return path


def _unreadable(path: str) -> str:
    """Why; empty when it can be read. It is not opened: whoever writes into a FIFO would notice."""
    try:
        os.stat(path)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(path, os.R_OK) else os.strerror(errno.EACCES)


def choose_input(spec: StepSpec) -> tuple[int | None, int]:
    """(descriptor to read for the tasks or None, the task it is for)."""
    text = spec.std_in
    if text == "none" or (text not in ("", "all") and not text.isdecimal()):
        return None, ALL_TASKS
    if not _may_read_stdin():
        return None, ALL_TASKS
    if spec.pty:
        return 0, 0
    return 0, int(text) if text.isdecimal() else ALL_TASKS


def _may_read_stdin() -> bool:
    """False where stdin is closed, or is a terminal that belongs to somebody else's foreground (`srun ... &`)."""
    try:
        os.fstat(0)
    except OSError:
        return False
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # a terminal, but of no session of ours: nobody is in its foreground
        return True


def open_outputs(spec: StepSpec, job_id: int, step_id: int, ntasks: int) -> tuple[Output, Output]:
    """Where what comes from the nodes as stdout and stderr is written."""
    if spec.pty:
        return Output(1, Style()), Output(2, Style())
    style = Style(label=spec.label, by_line=ntasks > 1 and not spec.unbuffered, ntasks=ntasks)
    files: dict[str, Output] = {}

    def output(pattern: str, own_fd: int) -> Output:
        if not opened_here(pattern, spec.work_dir):
            return Output(own_fd, style)
        path = _expanded(pattern, spec, job_id, step_id)
        if path not in files:
            files[path] = Output(_open(path, spec), style)
        return files[path]

    return output(spec.std_out, 1), output(spec.std_err or spec.std_out, 2)


def _expanded(pattern: str, spec: StepSpec, job_id: int, step_id: int) -> str:
    array_job, array_task = os.environ.get("SLURM_ARRAY_JOB_ID", ""), os.environ.get("SLURM_ARRAY_TASK_ID", "")
    user = str(os.getuid())
    with suppress(KeyError):
        user = pwd.getpwuid(os.getuid()).pw_name
    values = FilenameValues(
        job_id=job_id,
        array_job_id=int(array_job) if array_job.isdigit() else None,
        array_task_id=int(array_task) if array_task.isdigit() else None,
        step=step_id,
        user=user,
        job_name=os.environ.get("SLURM_JOB_NAME") or spec.name,
    )
    return os.path.join(spec.work_dir or os.getcwd(), expand_filename(pattern, values))


def _open(path: str, spec: StepSpec) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if spec.open_append else os.O_TRUNC)
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # as for batch jobs: see `agent.output`
        return os.open(path, flags, 0o666)
    except OSError as error:
        raise CommandFailure(f"Could not open stdout file {path}: {error.strerror}") from error
