"""The scene of a rehearsal: which GPUs its virtual nodes have, what is broken, where its kernel's lines come in.

A folder of the cluster's home. `scene.json` is written by the daemon before it starts the gatherer (`cluster.rehearsal`
says that it is one); `faults/*.json` and lines in the pipe `kernel` are written by `bireme chaos`. The gatherer reads
all of it (`cards`, `lines`). What is no rehearsal has no such folder, and none of this code runs there.
Invariant: a fault whose time is over is none, whoever forgot to remove its file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

MODEL = "Rehearsed GPU"
BUS_OF_FIRST = 0x17
FaultKind = Literal["throttle", "lost", "ecc"]
FAULTS: tuple[FaultKind, ...] = ("throttle", "lost", "ecc")


class NodeGpus(msgspec.Struct, frozen=True):
    """The GPUs of one virtual node."""

    node: str
    models: tuple[str, ...]
    """Of each, by its number."""


class PlayedCard(msgspec.Struct, frozen=True):
    """One GPU of a virtual node."""

    uuid: str
    node: str
    number: int
    model: str
    bus: str
    """As the kernel writes it. A virtual node has a PCI domain of its own."""


class PlayedFault(msgspec.Struct, frozen=True):
    """What is broken of one GPU, and until when (Unix time)."""

    kind: FaultKind
    node: str
    gpu: int
    until: float


class Scene:
    """`folder`: of the home; need not be there."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.kernel = self.folder / "kernel"
        self._faults = self.folder / "faults"
        self._read: tuple[float, tuple[PlayedFault, ...]] = (0.0, ())

    @property
    def is_there(self) -> bool:
        return (self.folder / "scene.json").exists()

    def set_up(self, nodes: Sequence[NodeGpus]) -> None:
        """By the daemon, before anybody reads it. Raises OSError."""
        self._faults.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.kernel.is_fifo():
            os.mkfifo(self.kernel, 0o600)
        _write(self.folder / "scene.json", msgspec.json.encode(nodes))

    def cards(self) -> list[PlayedCard]:
        """Raises OSError or msgspec.DecodeError."""
        nodes = msgspec.json.decode((self.folder / "scene.json").read_bytes(), type=list[NodeGpus])
        return [
            PlayedCard(f"GPU-{each.node}-{number}", each.node, number, model or MODEL, bus_of(domain, number))
            for domain, each in enumerate(nodes)
            for number, model in enumerate(each.models)
        ]

    def begin(self, name: str, fault: PlayedFault) -> None:
        """Breaks it until `fault.until`, or until `end`. Raises OSError."""
        _write(self._faults / f"{name}.json", msgspec.json.encode(fault))

    def end(self, name: str) -> None:
        (self._faults / f"{name}.json").unlink(missing_ok=True)

    def faults(self, now: float) -> tuple[PlayedFault, ...]:
        """Those that last. The files are read again when one came or went."""
        try:
            changed = self._faults.stat().st_mtime
        except OSError:
            return ()
        if changed != self._read[0]:
            self._read = changed, tuple(self._all())
        return tuple(fault for fault in self._read[1] if fault.until > now)

    def _all(self) -> list[PlayedFault]:
        found = []
        for file in sorted(self._faults.glob("*.json")):
            with suppress(OSError, msgspec.DecodeError):  # it was just ended
                found.append(msgspec.json.decode(file.read_bytes(), type=PlayedFault))
        return found

    def tell(self, node: str, text: str) -> None:
        """A line of the kernel of a virtual node. Raises OSError where no gatherer listens."""
        assert text.isprintable(), "one line"
        pipe = os.open(self.kernel, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(pipe, f"{node}\t{text}\n".encode())
        finally:
            os.close(pipe)


def bus_of(domain: int, number: int) -> str:
    return f"{domain:04x}:{BUS_OF_FIRST + number:02x}:00.0"


def _write(path: Path, text: bytes) -> None:
    """Whole or not at all: somebody may be reading it."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(text)
    new.replace(path)
