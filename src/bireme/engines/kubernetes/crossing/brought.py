"""Input of jobs that no volume carries: it is brought into the pods, from the submitter's file on this machine.

The engine shows every order to `divert`: a task that reads from such a file is told to read from its pod's inbox
instead (`agent/inbox.py`), under a name that stands for the file. The pod asks for it when the task is to start, and
the gateway asks for the `Offer` of that name. What stands for what is kept in files, for a daemon that is started anew.

A file that is not here may be of the image: the task finds it there, or says as ever that it does not exist. What is
here and cannot be brought fails the job as Slurm would, with the reason.
Invariant: a pod names only what its own start was given; nothing is read that the submitter may not read.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec.structs import replace

from bireme.agent.messages.orders import Launch, StartStep, Streams, Unopened
from bireme.agent.system.identity import Identity
from bireme.agent.system.output import OpenFileError, open_input
from bireme.core.model.jobs import Owner
from bireme.engines.kubernetes.crossing.as_submitter import open_for
from bireme.engines.kubernetes.crossing.gateway import Berth, Offer
from bireme.engines.kubernetes.crossing.returned import is_of_pod, name_for

MIB = 1 << 20
MOST_BYTES = 1024 * MIB
"""Pods keep it on the disk of their node, which others share."""


@dataclass(frozen=True, slots=True)
class _Source:
    path: str
    uid: int
    gid: int
    groups: tuple[int, ...]

    def open(self) -> Offer:
        """Raises OpenFileError: it cannot be read, or not be brought."""
        identity = Identity(self.uid, self.gid, tuple(self.groups))
        fd = open_for(identity, "stdin", self.path, lambda: open_input(self.path))
        found = os.fstat(fd)
        why = ""
        if stat.S_ISDIR(found.st_mode):
            why = os.strerror(errno.EISDIR)
        elif not stat.S_ISREG(found.st_mode):
            why = "only regular files can be brought into a pod; it must lie on a volume (kubernetes.volumes)"
        elif found.st_size > MOST_BYTES:
            why = (
                f"it has {found.st_size // MIB} MiB, and at most {MOST_BYTES // MIB} MiB are brought into a pod; "
                "it must lie on a volume (kubernetes.volumes)"
            )
        if why:
            os.close(fd)
            raise OpenFileError("stdin", self.path, errno.EINVAL, why)
        return Offer(fd, found.st_size)


class BroughtInput:
    def __init__(self, folder: Path, inbox: str) -> None:
        """`inbox`: a folder of every pod."""
        self._folder = folder
        self._inbox = inbox

    def divert(self, owner: Owner, order: Launch, volumes: Sequence[str]) -> Launch:
        """The order to start a script or a step, with each file that must be brought replaced.

        `volumes`: folders that the job's pods have.
        """
        start = f"{order.job}.{order.gen}"
        if isinstance(order, StartStep):
            paths = {task.stdin for task in order.tasks if task.stdin}
            found = {path: self._instead(path, start, str(order.step), owner, volumes) for path in paths}
            return replace(order, tasks=[_reading(task, found.get(task.stdin)) for task in order.tasks])
        if order.batch is None or not order.batch.stdin:
            return order
        instead = self._instead(order.batch.stdin, start, "batch", owner, volumes)
        return replace(order, batch=_reading(order.batch, instead))

    def offer(self, berth: Berth, name: str) -> Offer:
        """Raises ValueError: this start has no such file; OSError: it cannot be read any more."""
        kept = self._folder / f"{berth.job_id}.{berth.generation}" / f"{name}.json"
        if "/" in name or not kept.exists():
            raise ValueError(f"job {berth.job_id} has no input file {name!r}")
        try:
            return _Source(**json.loads(kept.read_text())).open()
        except OpenFileError as error:
            raise OSError(str(error)) from error

    def forget(self, job_id: int, generation: int) -> None:
        shutil.rmtree(self._folder / f"{job_id}.{generation}", ignore_errors=True)

    def _instead(
        self, path: str, start: str, label: str, owner: Owner, volumes: Sequence[str]
    ) -> str | Unopened | None:
        """Where a task that reads from this file finds it, or why not; None: there.

        Opening it costs a process: once for each start.
        """
        if is_of_pod(path, volumes):
            return None
        name = name_for(label, path)
        kept = self._folder / start / f"{name}.json"
        if not kept.exists():
            source = _Source(path, owner.uid, owner.gid, owner.groups)
            try:
                os.close(source.open().fd)
            except OpenFileError as error:
                return None if error.errno == errno.ENOENT else Unopened("stdin", path, error.errno, error.why)
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = kept.with_suffix(".new")  # half a file would be taken for the answer for ever
            fresh.write_text(json.dumps(asdict(source)))
            fresh.rename(kept)
        return f"{self._inbox}/{name}"


def _reading(task: Streams, instead: str | Unopened | None) -> Streams:
    match instead:
        case str():
            return replace(task, stdin=instead)
        case Unopened():
            return replace(task, unopened=instead)
        case None:
            return task
