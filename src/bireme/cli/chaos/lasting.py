"""Faults that last: each is written down with how it is undone, and undone once, in time or by `bireme chaos end`.

Each has a file in the home's `chaos` folder that says how it is undone, and a process of its own that waits for its
time and undoes it (`python -m bireme.cli.chaos.lasting FILE`). Whoever undoes it takes the file away first; so one of
the two does it, and one whose process was killed is ended by hand.
Invariant: how a fault is undone is on disk before anybody is told that it began.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from bireme.agent.system.processes import ProcessIdentity, signal_all
from bireme.gather.rehearsal.scene import Scene

LONGEST_S = 86_400.0


class Cut(msgspec.Struct, frozen=True):
    """A file whose end was taken away: what it was, and where that end is kept."""

    path: str
    kept: str
    size: int
    """What is left of it; another size now: its owner has written it anew."""
    mode: int
    was_removed: bool = False


class Undo(msgspec.Struct, frozen=True):
    """How a fault is taken back: what is empty is nothing to take back."""

    stopped: tuple[ProcessIdentity, ...] = ()
    """These go on."""
    filled: str = ""
    """This file is removed."""
    cut: Cut | None = None
    scene: str = ""
    """The folder of a rehearsal, from which the fault is removed."""


class Lasting(msgspec.Struct, frozen=True):
    """A fault that lasts."""

    number: int
    kind: str
    target: str
    began: float
    until: float
    undo: Undo


class Ledger:
    """The faults of one cluster that last."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def next_number(self) -> int:
        """Of a fault that is about to begin; its file is there from now on. Raises OSError."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        number = 1 + max((each.number for each in self.all()), default=0)
        while True:
            try:
                os.close(os.open(self.file_of(number), os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            except FileExistsError:
                number += 1
            else:
                return number

    def file_of(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def kept_of(self, number: int) -> Path:
        """Where a fault keeps what it took away."""
        return self.folder / f"{number}.kept"

    def write(self, fault: Lasting) -> None:
        file = self.file_of(fault.number)
        new = file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(fault))
        new.replace(file)

    def forget(self, number: int) -> None:
        self.file_of(number).unlink(missing_ok=True)

    def all(self) -> list[Lasting]:
        """Those that last, by number."""
        return sorted(self._read(), key=lambda each: each.number)

    def _read(self) -> Iterator[Lasting]:
        for file in self.folder.glob("*.json"):
            with suppress(OSError, msgspec.DecodeError):  # ended, or about to begin
                yield msgspec.json.decode(file.read_bytes(), type=Lasting)

    def end(self, fault: Lasting) -> bool:
        """Takes it back; False: another one has."""
        try:
            self.file_of(fault.number).unlink()
        except FileNotFoundError:
            return False
        take_back(fault)
        return True


def take_back(fault: Lasting) -> None:
    undo = fault.undo
    signal_all(undo.stopped, signal.SIGCONT)
    if undo.filled:
        Path(undo.filled).unlink(missing_ok=True)
    if undo.scene:
        Scene(undo.scene).end(str(fault.number))
    if undo.cut is not None:
        _mend(undo.cut)


def _mend(cut: Cut) -> None:
    """Unless its owner has written it anew, or removed its folder."""
    kept = Path(cut.kept)
    with suppress(OSError):
        if cut.was_removed:
            file = os.open(cut.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, cut.mode)
        elif os.lstat(cut.path).st_size != cut.size:
            return
        else:
            file = os.open(cut.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(file, "wb") as opened:
            opened.write(kept.read_bytes())
    kept.unlink(missing_ok=True)


def watch_over(file: Path, held: Sequence[int] = ()) -> None:
    """Starts the process that ends it in time. `held`: descriptors that are the fault while that process has them."""
    subprocess.Popen(
        [sys.executable, "-m", "bireme.cli.chaos.lasting", str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        pass_fds=held,
    )


def main() -> int:
    """Waits until the fault is to end, looks now and then whether somebody has ended it, and takes it back."""
    file = Path(sys.argv[1])
    ledger, number = Ledger(str(file.parent)), int(file.stem)
    while (fault := next((each for each in ledger.all() if each.number == number), None)) is not None:
        left_s = fault.until - time.time()
        if left_s <= 0.0:
            ledger.end(fault)
            break
        time.sleep(min(left_s, 1.0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
