"""Finds what a job's program logged into files: TensorBoard's event files, W&B's folders, W&B's address in the log.

Looks below the job's working folder (or where the user says) with the asking user's own rights. TensorBoard's files say
in their names when they were begun: those begun while the job ran count as its own. W&B's folders have the run's id in
their names.
Invariant: no more than `MOST_ENTRIES` names are looked at, no link is followed, and a file is opened only to be read.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO

from bireme.cli.tracking.tensorboard import Scalars, read_scalars
from bireme.cli.tracking.wandb_log import Run, read_run

MOST_ENTRIES = 50_000
MOST_DEPTH = 8
MOST_FILES = 32
_MOST_SUMMARY = 1024 * 1024
_LOG_TAIL = 1024 * 1024
_SLACK_S = 2.0
"""Clocks of nodes may differ a little, and names have whole seconds."""
_EVENTS = re.compile(r"events\.out\.tfevents\.(\d{9,12})\.", re.ASCII)
_PASSED_OVER = frozenset((".git", "__pycache__", "node_modules", ".venv", "site-packages"))


@dataclass(slots=True)
class Found:
    """What lies below a folder."""

    event_files: list[str] = field(default_factory=list)
    wandb: list[str] = field(default_factory=list)
    """Folders of the job's run."""
    whole: bool = True
    """False: there was more than is looked at."""


def look(folder: str, start: float, end: float, wandb_run: str) -> Found:
    """Below a folder, what was begun from `start` to `end`, and folders of that run of W&B (empty: none)."""
    found, left = Found(), [MOST_ENTRIES]
    for path, name, is_folder in _entries(folder, 0, left):
        if is_folder and wandb_run and name.endswith(f"-{wandb_run}") and "run-" in name:
            found.wandb.append(path)
        elif not is_folder and start - _SLACK_S <= _begun_at(name) <= end + _SLACK_S:
            found.event_files.append(path)
    found.whole = left[0] > 0 and len(found.event_files) <= MOST_FILES
    found.event_files = sorted(found.event_files)[:MOST_FILES]
    found.wandb.sort()
    return found


def _begun_at(name: str) -> float:
    """When an event file was begun, by its name; of any other file: never."""
    match = _EVENTS.match(name)
    return float(match[1]) if match is not None else -math.inf


def _entries(folder: str, depth: int, left: list[int]) -> Iterator[tuple[str, str, bool]]:
    try:
        with os.scandir(folder) as listed:
            entries = sorted(islice(listed, left[0]), key=lambda entry: entry.name)
    except OSError:
        return  # not ours to read, or gone
    left[0] -= len(entries)
    for entry in entries:
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder and not entry.is_file(follow_symlinks=False):
                continue
        except OSError:
            continue
        yield entry.path, entry.name, is_folder
        if is_folder and depth < MOST_DEPTH and left[0] > 0 and entry.name not in _PASSED_OVER:
            yield from _entries(entry.path, depth + 1, left)


def scalars_of(path: str) -> Scalars:
    """Raises OSError."""
    with _opened(path) as file:
        return read_scalars(file)


def _opened(path: str, within: int | None = None) -> BinaryIO:
    """A file to read: no link, and nothing that makes who opens it wait, such as a pipe. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags, dir_fd=within)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file")
    return open(descriptor, "rb")


def wandb_run(folder: str) -> Run:
    """What the client wrote into an offline run's folder; nothing where there is no such file. Raises OSError."""
    within = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        names = sorted(name for name in os.listdir(within) if name.endswith(".wandb"))
        if not names:
            return Run()
        with _opened(names[0], within) as file:
            return read_run(file)
    finally:
        os.close(within)


def wandb_summary(folder: str) -> dict[str, float]:
    """The numbers of the latest summary that W&B's client wrote into a run's folder; nothing where there is none: a
    run without a network has it in its log alone (`wandb_run`)."""
    try:
        within = os.open(os.path.join(folder, "files"), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with _opened("wandb-summary.json", within) as file:
                told: Any = json.loads(file.read(_MOST_SUMMARY))
        finally:
            os.close(within)
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(told, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in told.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def wandb_address(log: str, run_id: str) -> str:
    """The run's address as W&B's client prints it, from the end of a job's log; empty: it is not there."""
    try:
        with _opened(log) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_TAIL))
            text = file.read(_LOG_TAIL).decode("utf-8", "replace")
    except OSError:
        return ""
    found = re.findall(rf"https?://[!-~]{{1,300}}?/runs/{re.escape(run_id)}(?![\w-])", text)
    return found[-1] if found else ""
