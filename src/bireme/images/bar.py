"""How far a fetch is, as one line of a terminal that is drawn again and again, and gone when it is over.

Used by `bireme images pull` and by srun, so it stays light. Not here: what is told where there is no terminal.
Invariant: whoever writes to the same terminal clears the line before.
"""

from __future__ import annotations

import os

from bireme.images.unpacking.bounds import shown

_WIDTH, _NAME_AT_LEAST = 30, 8
_CLEAR = b"\r\x1b[K"


class Bar:
    def __init__(self, name: str, fd: int = 2) -> None:
        self._name, self._fd, self._drawn = name, fd, False

    @property
    def can_be_seen(self) -> bool:
        return os.isatty(self._fd)

    def show(self, doing: str, done: int, of: int) -> None:
        """`of`: 0 while nobody knows. A terminal alone shows it."""
        if not self.can_be_seen:
            return
        part = min(1.0, done / of) if of else 0.0
        bar = ("#" * round(part * _WIDTH)).ljust(_WIDTH, ".")
        sizes = f" {shown(done)} of {shown(of)}" if of else ""
        os.write(self._fd, _CLEAR + self._fitted(f"{doing} ", f" [{bar}]{sizes}").encode(errors="replace"))
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            self._drawn = False
            os.write(self._fd, _CLEAR)

    def _fitted(self, before: str, after: str) -> str:
        """On one line of this terminal: a line that breaks cannot be drawn again. Of a name its end says most."""
        room = os.get_terminal_size(self._fd).columns - 1 - len(before) - len(after)
        name = self._name if len(self._name) <= room else f"...{self._name[3 - max(room, _NAME_AT_LEAST) :]}"
        return (before + name + after)[: max(room + len(before) + len(after), 1)]
