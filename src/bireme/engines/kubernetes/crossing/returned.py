"""Output of jobs that no volume carries: it comes back out of the pods, into the submitter's files on this machine.

The engine shows every order to `divert`: a file that lies on no volume of the pods is made here, as the submitter, and
the pod is told to write into its spool instead (`agent/pod/spool.py`), under a name that stands for the file. When the
pod calls, the gateway asks for the `Delivery` of that name. What stands for what, and how far it came, is kept in
files, so that a restarted daemon goes on where the last one stopped.

A file that cannot be made here fails the job as Slurm would: the pod is told why, and writes nowhere.
Invariant: a pod names only what its own start was given; paths never come from a pod.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec.structs import replace

from bireme.agent.messages.orders import Launch, StartStep, Streams, Unopened
from bireme.agent.messages.protocol import VOLUMES_VARIABLE
from bireme.agent.system.identity import Identity
from bireme.agent.system.output import OpenFileError, OpenMode, open_output
from bireme.core.model.jobs import Owner
from bireme.engines.kubernetes.crossing.as_submitter import open_for
from bireme.engines.kubernetes.crossing.gateway import Berth

_OF_THE_NODE = ("/dev/", "/proc/")
_PROGRESS = struct.Struct(">QQQ")


@dataclass(frozen=True, slots=True)
class _Target:
    path: str
    umask: int
    uid: int
    gid: int
    groups: tuple[int, ...]

    def open(self, mode: OpenMode) -> int:
        """Raises OpenFileError."""
        identity = Identity(self.uid, self.gid, tuple(self.groups))
        return open_for(identity, "stdout", self.path, lambda: open_output(self.path, mode, umask=self.umask))


def is_of_pod(path: str, volumes: Iterable[str]) -> bool:
    """Whether a pod with these volumes has the file itself, or needs none."""
    return os.path.normpath(path).startswith((*_OF_THE_NODE, *(f"{volume.rstrip('/')}/" for volume in volumes)))


def _told(env: dict[str, str], volumes: Iterable[str]) -> dict[str, str]:
    return {**env, VOLUMES_VARIABLE: ":".join(volume.rstrip("/") for volume in volumes)}


def name_for(label: str, path: str) -> str:
    """What a pod calls a file of this machine: the same for the same file of the same step."""
    return f"{label}-{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()[:16]}"


class Delivery:
    """One file, as far as it has arrived from one pod.

    Before every piece it is written down what it will be and how large the file is, so that a daemon that dies in the
    middle knows from the file's size how much of the piece got there.
    """

    def __init__(self, fd: int, progress: Path) -> None:
        self._fd = fd
        self._progress = os.open(progress, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        written = os.pread(self._progress, _PROGRESS.size, 0)
        position, length, size = _PROGRESS.unpack(written) if len(written) == _PROGRESS.size else (0, 0, 0)
        self.position: int = position + min(max(self._size() - size, 0), length)

    def write(self, piece: bytes) -> None:
        """Raises OSError: the rest of the piece is to be sent again."""
        self._note(len(piece))
        written = 0
        while written < len(piece):
            written += os.write(self._fd, piece[written:])
        self.position += len(piece)
        self._note(0)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._progress)

    def _note(self, length: int) -> None:
        os.pwrite(self._progress, _PROGRESS.pack(self.position, length, self._size()), 0)

    def _size(self) -> int:
        return os.fstat(self._fd).st_size


class ReturnedOutput:
    def __init__(self, folder: Path, spool: str) -> None:
        """`spool`: a folder of every pod."""
        self._folder = folder
        self._spool = spool

    def divert(self, owner: Owner, order: Launch, volumes: Sequence[str]) -> Launch:
        """The order to start a script or a step, with each file that must come back replaced.

        `volumes`: folders of the job's pods that may be written and stay.
        """
        start = f"{order.job}.{order.gen}"
        if isinstance(order, StartStep):
            label, umask = str(order.step), order.umask
            assert umask is not None
            tasks = [self._replaced(task, start, label, owner, order.append, umask, volumes) for task in order.tasks]
            return replace(order, env=_told(order.env, volumes), tasks=tasks)
        if order.batch is None:
            return order
        umask, append = order.batch.umask, order.batch.append
        assert umask is not None
        batch = self._replaced(order.batch, start, "batch", owner, append, umask, volumes)
        return replace(order, batch=replace(batch, env=_told(batch.env, volumes)))

    def delivery(self, berth: Berth, name: str) -> Delivery:
        """Raises ValueError: this start has no such file; OSError: it cannot be written."""
        folder = self._folder / f"{berth.job_id}.{berth.generation}"
        if "/" in name or not (folder / f"{name}.json").exists():
            raise ValueError(f"job {berth.job_id} has no output file {name!r}")
        target = _Target(**json.loads((folder / f"{name}.json").read_text()))
        try:
            fd = target.open("append")
        except OpenFileError as error:
            raise OSError(str(error)) from error
        return Delivery(fd, folder / f"{name}.{berth.node}")

    def forget(self, job_id: int, generation: int) -> None:
        shutil.rmtree(self._folder / f"{job_id}.{generation}", ignore_errors=True)

    def _replaced(
        self,
        streams: Streams,
        start: str,
        label: str,
        owner: Owner,
        append: bool,
        umask: int,
        volumes: Sequence[str],
    ) -> Streams:
        changed = replace(streams)
        for stream in ("stdout", "stderr"):
            path: str = getattr(streams, stream)
            if not path or is_of_pod(path, volumes):
                continue
            target = _Target(path, umask, owner.uid, owner.gid, owner.groups)
            try:
                setattr(changed, stream, self._given(start, label, target, append))
            except OpenFileError as error:
                changed.unopened = changed.unopened or Unopened(stream, path, error.errno)
        return changed

    def _given(self, start: str, label: str, target: _Target, append: bool) -> str:
        """Where the pod writes it. An order that is given again finds what it made: nothing is emptied twice.

        Raises OpenFileError.
        """
        name = name_for(label, target.path)
        kept = self._folder / start / f"{name}.json"
        if not kept.exists():
            os.close(target.open("append" if append else "truncate"))
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            kept.write_text(json.dumps(asdict(target)))
        return f"{self._spool}/{name}"
