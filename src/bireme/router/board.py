"""Counts that all workers see: memory shared by them, in which each has a row and writes only that.

There are more rows than workers: those that follow others have rows of their own while the others end.

Requests in flight by replica and by key, requests that wait by service: what one worker must know of the others for
each request, and could not ask for. The supervisor gives every thing a block of cells (`Blocks`) and reads all rows.
Without locks: two workers that look at the same instant may both take the last place of a replica; they see it at once.

Invariant: a cell is written by one process, as one aligned machine word; the row of a worker that died is emptied.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable

BLOCK = 3
"""Cells of one thing."""
BLOCKS = 1 << 15
_SPARE = BLOCKS // 4
"""Blocks that only services and replicas may have."""
_ROW = BLOCK * BLOCKS
_WORD = 8


class Board:
    """The cells, as one process sees them. `row`: its own; the supervisor has none."""

    def __init__(self, cells: memoryview, rows: int, row: int | None) -> None:
        self._rows = [cells[number * _ROW : (number + 1) * _ROW] for number in range(rows)]
        self._row = row
        self.mine = self._rows[row] if row is not None else memoryview(bytearray(0)).cast("q")
        self.look_at(range(rows))

    def look_at(self, rows: Iterable[int]) -> None:
        """Those that somebody has."""
        rows = list(rows)
        self._looked_at = [self._rows[number] for number in rows]
        self._others = [self._rows[number] for number in rows if number != self._row]
        self.is_shared = bool(self._others)

    def elsewhere(self, cell: int) -> int:
        """What the others have in it."""
        return sum([row[cell] for row in self._others])

    def total(self, cell: int) -> int:
        return sum([row[cell] for row in self._looked_at])

    def all(self, cell: int) -> list[int]:
        """Of all rows, in their order."""
        return [row[cell] for row in self._rows]

    def write(self, cell: int, value: int) -> None:
        self.mine[cell] = value

    def clear(self, cell: int, count: int) -> None:
        """In all rows: for what nobody uses any more."""
        for row in self._rows:
            for number in range(cell, cell + count):
                row[number] = 0

    def empty(self, row: int) -> None:
        self._rows[row][:] = memoryview(bytes(_ROW * _WORD)).cast("q")


class OwnCells:
    """A block that no other worker sees, for what has none on the board."""

    def __init__(self) -> None:
        self.mine = memoryview(bytearray(BLOCK * _WORD)).cast("q")

    def elsewhere(self, cell: int) -> int:
        return 0

    def all(self, cell: int) -> list[int]:
        return [self.mine[cell]]

    def write(self, cell: int, value: int) -> None:
        self.mine[cell] = value


def new_memory(rows: int) -> int:
    """A descriptor of memory for so many rows, which workers inherit. What nobody writes to takes no room."""
    fd = os.memfd_create("bireme-router")
    os.ftruncate(fd, rows * _ROW * _WORD)
    return fd


def mapped(fd: int, rows: int) -> memoryview:
    return memoryview(mmap.mmap(fd, rows * _ROW * _WORD)).cast("q")


class NoRoomError(Exception):
    """More things than the board has blocks for."""


class Blocks:
    """Which things have which cells. Only the supervisor gives and takes them."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._free = list(range(BLOCKS - 1, 0, -1))

    def give(self, names: Iterable[str], others: Iterable[str] = ()) -> dict[str, int]:
        """The first cell of each; it keeps the one that it has. Raises NoRoomError, and then nothing is given.

        `others` have what is left: one person's many keys are not to keep everybody's replicas out.
        """
        wanted = dict.fromkeys(names)
        new = [name for name in wanted if name not in self._of]
        if len(new) > len(self._free):
            raise NoRoomError(f"a router has room for {BLOCKS - 1} replicas and services together")
        for name in new:
            self._of[name] = self._free.pop() * BLOCK
        for name in dict.fromkeys(others):
            if name in self._of or len(self._free) > _SPARE:
                wanted[name] = None
                if name not in self._of:
                    self._of[name] = self._free.pop() * BLOCK
        return {name: self._of[name] for name in wanted}

    def restore(self, cells: dict[str, int], board: Board) -> None:
        """As another supervisor gave them. What is counted of things that it does not name keeps its block."""
        self._of = dict(cells)
        taken = {cell // BLOCK for cell in cells.values()}
        self._free = [
            block for block in range(BLOCKS - 1, 0, -1) if block not in taken and not board.total(block * BLOCK)
        ]

    def others(self, names: Iterable[str]) -> dict[str, int]:
        """Those that have cells and are not among these."""
        kept = set(names)
        return {name: cell for name, cell in self._of.items() if name not in kept}

    def take_back(self, name: str) -> None:
        self._free.append(self._of.pop(name) // BLOCK)
