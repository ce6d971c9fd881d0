"""One log read for the lines that rules know, whatever its size: gigabytes in seconds, an error in the middle too.

The beginning and the end are looked through for the words of all rules. What lies between is only searched for a few
words that nearly every failure has near it (`triggers`), and what stands around those is looked through for all: the
first ones and the last ones, where there are many. Newlines are counted throughout, so that line numbers are right.
Of each rule the first and the last clues of each rank are kept. Called by `reading`.
Invariant: memory is bounded by `Limits`, not by the file; what was passed over is a sentence in `problems`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from bireme.core.diagnosis.matching import MOST_CHARACTERS, Rulebook, sure_of
from bireme.core.diagnosis.model import SIGNS, Clue, Line, Source
from bireme.core.diagnosis.outliving import ENOUGH_PROGRESS
from bireme.evidence.masking import mask
from bireme.evidence.searching import Searcher
from bireme.evidence.stacks import has_stacks, stack_lines
from bireme.evidence.triggers import PAGE, TRIGGERS, chosen, newlines, pages_with
from bireme.evidence.whereabouts import Labels, time_of

_PAGES_BEHIND = 3
"""Pages behind the one in which a trigger stands that are looked through; before it, one."""
_LONGEST_LINE = 1 << 20
_SAMPLED_LINES = 50
_FEW = 4
"""Clues of one rule and rank that are kept, from the front and from the back."""
_ENOUGH_SIGNS = 2 * ENOUGH_PROGRESS
_APART = 500
"""Lines: clues between them are kept so far from each other, or a flood of errors would look like two and a silence."""
_MOST_BETWEEN = 40
_MOST_KEYS = 1_000
"""Pairs of a rule and a rank."""
_MOST_FIRST, _MOST_LAST = 1_000, 4_000
"""Lines of one piece (about a MiB) that rules are asked about."""
_LAST_LINES = 3
_END = 128 << 10
_COLOURS = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_UNNUMBERED = 1 << 40
"""Lines whose numbers are not known have greater ones than all others, so that their order is right."""
_Tree = dict[str, Any]
"""Letters, each with the tree of those that follow it; "" where a word ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is read, in bytes and seconds."""

    whole: int = 8 << 20
    """Of one file by all rules: a quarter of it from the beginning, the rest from the end."""
    whole_of_all: int = 64 << 20
    """Of all files together, where there are many; each has 64 KiB at least."""
    around: int = 8 << 20
    """Around triggers in one file, from the front; as much again from the back."""
    unpacked: int = 4 << 30
    seconds: float = 60.0
    """For all files. Each is begun and its end is read, whatever the time."""
    files: int = 4096

    def for_each_of(self, files: int) -> Limits:
        return replace(self, whole=max(64 << 10, min(self.whole, self.whole_of_all // max(1, files))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What is known of all lines of a file."""

    file: str
    source: Source = "output"
    rank: int | None = None
    node: str = ""
    utc_offset_s: float = 0.0
    written_by: float = 0.0


@dataclass(slots=True)
class Found:
    """What was found in logs."""

    clues: list[Clue] = field(default_factory=list)
    ends: list[Line] = field(default_factory=list)
    """The last lines of each file: all there is to show where no rule knows anything."""
    problems: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.clues += other.clues
        self.ends += other.ends
        self.problems += other.problems


@dataclass(frozen=True, slots=True)
class _Piece:
    """Whole lines of a file. `number`: of the first one; from `_UNNUMBERED` on it is not known, and only counted."""

    data: bytes
    number: int


class WordSieve:
    """Finds lines in which a rule's word stands, by one pattern for all words: a tree of their letters."""

    def __init__(self, book: Rulebook, source: Source, *, of_health: bool = False) -> None:
        """For lines of a source. `of_health`: for signs of health, which most lines are, instead of what went wrong."""
        rules = (rule for rule in book.rules if (rule.role in SIGNS) == of_health and sure_of(rule, source) is not None)
        words = {word for rule in rules for word in rule.words}
        tree: _Tree = {}
        for word in words:
            node = tree
            for letter in word:
                node = node.setdefault(letter, {})
            node[""] = {}
        self._pattern = re.compile(_alternatives(tree).encode() if words else rb"(?!)")

    def lines(self, piece: _Piece) -> Iterator[tuple[bytes, int]]:
        """(line, number) of each that has a word; of a line that was written over and over, each writing."""
        data = _COLOURS.sub(b"", piece.data) if b"\x1b" in piece.data else piece.data
        lowered = data.lower()
        number, counted, at = piece.number, 0, 0
        while (found := self._pattern.search(lowered, at)) is not None:
            start = data.rfind(b"\n", 0, found.start()) + 1
            end = data.find(b"\n", found.end())
            end = len(data) if end < 0 else end
            number += data.count(b"\n", counted, start)
            counted, at = start, end + 1
            for part in self._parts(data[start:end]):
                yield part, number

    def _parts(self, line: bytes) -> Iterator[bytes]:
        writings = line.split(b"\r") if b"\r" in line else [line]
        for writing in writings:
            if len(writing) <= MOST_CHARACTERS:
                if len(writings) == 1 or self._pattern.search(writing.lower()) is not None:
                    yield writing
                continue
            at = 0  # a line that is longer than rules read: around each word
            while (found := self._pattern.search(writing.lower(), at)) is not None:
                start = max(0, found.start() - MOST_CHARACTERS // 2)
                at = start + MOST_CHARACTERS
                yield writing[start:at]


Sieves = tuple[WordSieve, WordSieve]
"""For what went wrong, and for signs of health."""


def sieves_for(book: Rulebook, source: Source) -> Sieves:
    return WordSieve(book, source), WordSieve(book, source, of_health=True)


def _alternatives(tree: _Tree) -> str:
    if "" in tree:
        return ""  # a shorter word ends here: the longer ones say no more
    parts = [re.escape(letter) + _alternatives(rest) for letter, rest in sorted(tree.items())]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


class LogReader:
    """Reads one file's text, block by block."""

    def __init__(self, place: Place, searcher: Searcher, sieves: Sieves, limits: Limits) -> None:
        self._place = place
        self._searcher = searcher
        self._sieve, self._health = sieves
        self._head = limits.whole // 4
        self._tail = limits.whole - self._head
        self._around = limits.around
        self._labels: Labels | None = None
        self._triggers = TRIGGERS
        self._kept = _Kept()
        self._last: deque[_Piece] = deque()
        self._last_bytes = 0
        self._end = b""
        self._next_number = 0
        """Of the line behind what was looked through last."""

    def read(self, blocks: Iterable[bytes], is_over: Callable[[], bool]) -> bool:
        """All of it; False: time was over, and `read_end` goes on. What was read is looked through in any case."""
        ahead: deque[_Piece] = deque()
        bytes_ahead = 0
        stopped = False

        def until_over() -> Iterator[bytes]:
            """Asked for each block: nothing may come of one, of a hole or a line without end."""
            nonlocal stopped
            for block in blocks:
                yield block
                if is_over():
                    stopped = True
                    return

        try:
            for piece in _pieces(until_over(), 1):
                if self._head > 0:
                    self._look_through(piece)
                    self._head -= len(piece.data)
                    continue
                ahead.append(piece)
                bytes_ahead += len(piece.data)
                while bytes_ahead - len(ahead[0].data) >= self._tail:
                    bytes_ahead -= len(ahead[0].data)
                    self._search_between(ahead.popleft())
            return not stopped
        finally:
            for piece in (*self._last, *ahead):
                self._look_through(piece)

    @property
    def end_bytes(self) -> int:
        return self._tail

    def read_end(self, blocks: Iterable[bytes]) -> None:
        """The last `end_bytes` of a file of which not all was read; the numbers of its lines are not known."""
        first = True
        for piece in _pieces(blocks, _UNNUMBERED):
            cut = piece.data.find(b"\n") + 1 if first else 0
            self._look_through(_Piece(piece.data[cut:], piece.number + (cut > 0)))
            first = False

    def found(self) -> Found:
        if self._end:
            self._look_for_health()
        last = self._next_number - self._end.endswith(b"\n")
        clues = [replace(clue, line=replace(clue.line, last=last)) for clue in self._kept.clues()]
        return Found(clues=[masked(clue) for clue in clues], ends=self._ends())

    def _look_for_health(self) -> None:
        """At the end of the file: what a program went on with after an error, it did there."""
        begin = self._next_number - newlines(self._end)
        cut = self._end.find(b"\n") + 1 if begin > 1 else 0
        signs: list[Clue] = []
        for data, number in reversed(list(self._health.lines(_Piece(self._end[cut:], begin + (cut > 0))))):
            clues = self._searcher.clues(self._line(data.decode("utf-8", "replace"), number))
            signs += [clue for clue in clues if clue.rule.role in SIGNS]
            if len(signs) >= _ENOUGH_SIGNS:
                break
        for sign in reversed(signs):
            self._kept.add(sign)

    def _search_between(self, piece: _Piece) -> None:
        for start, end in _windows(piece.data, self._triggers):
            number = piece.number + newlines(piece.data[:start])
            window = _Piece(piece.data[start:end], number)
            if self._around > 0:
                self._around -= len(window.data)
                self._look_through(window)
                continue
            self._last.append(window)
            self._last_bytes += len(window.data)
            while self._last_bytes > self._tail:
                self._last_bytes -= len(self._last.popleft().data)

    def _look_through(self, piece: _Piece) -> None:
        if self._labels is None:
            sample = piece.data[: 1 << 16].decode("utf-8", "replace").splitlines()[:_SAMPLED_LINES]
            self._labels = Labels.of_sample(sample)
            self._triggers = chosen(piece.data)
        for data, number in _some(self._sieve.lines(piece)):
            self._ask(self._line(data.decode("utf-8", "replace"), number))
        if self._place.source in ("output", "file") and has_stacks(piece.data):
            for text, number in stack_lines(piece.data.decode("utf-8", "replace"), piece.number):
                self._ask(replace(self._line(text, number), source="trace"))
        follows = piece.number == self._next_number
        self._end = ((self._end if follows else b"") + piece.data[-_END:])[-_END:]
        self._next_number = piece.number + newlines(piece.data)

    def _line(self, text: str, number: int) -> Line:
        assert self._labels is not None
        where = self._labels.of(text)
        place = self._place
        return Line(
            text=where.text,
            source=place.source,
            order=number,
            file=place.file,
            number=number if number < _UNNUMBERED else 0,
            at=time_of(where.text, place.utc_offset_s, place.written_by),
            node=where.node or place.node,
            rank=where.rank if where.rank is not None else place.rank,
            device=where.device,
            pid=where.pid,
        )

    def _ask(self, line: Line) -> None:
        for clue in self._searcher.clues(line):
            if clue.rule.role not in SIGNS:  # they are looked for by themselves, and must not count twice
                self._kept.add(clue)

    def _ends(self) -> list[Line]:
        texts = _COLOURS.sub(b"", self._end).split(b"\n")
        found: list[Line] = []
        for back, text in enumerate(reversed(texts)):  # the last of them stands behind the last newline
            shown = text.rstrip(b"\r ").rpartition(b"\r")[2][:MOST_CHARACTERS].decode("utf-8", "replace")
            if shown.strip() and len(found) < _LAST_LINES:
                line = self._line(shown, self._next_number - back)
                found.append(replace(line, text=mask(line.text)))
        return found[::-1]


def masked(clue: Clue) -> Clue:
    """A clue that may be quoted."""
    named = {name: mask(value) for name, value in clue.named.items()}
    return replace(clue, line=replace(clue.line, text=mask(clue.line.text)), named=named)


class _Kept:
    """The first and the last clues of each rule and rank, and some between them."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int | None], list[Clue]] = {}
        self._last: dict[tuple[str, int | None], deque[Clue]] = {}

    def add(self, clue: Clue) -> None:
        key = clue.rule.id, clue.line.rank
        if key not in self._first and len(self._first) >= _MOST_KEYS:
            return
        first = self._first.setdefault(key, [])
        far = bool(first) and clue.line.order - first[-1].line.order >= _APART
        if len(first) < _FEW or (far and len(first) < _MOST_BETWEEN):
            first.append(clue)
        else:
            self._last.setdefault(key, deque(maxlen=_FEW)).append(clue)

    def clues(self) -> list[Clue]:
        kept = [clue for key, first in self._first.items() for clue in (*first, *self._last.get(key, ()))]
        return sorted(kept, key=lambda clue: clue.line.order)


def _some(lines: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """The first and the last, where rules may know nearly all: a flood of one error says what its ends say."""
    last: deque[tuple[bytes, int]] = deque(maxlen=_MOST_LAST)
    for count, line in enumerate(lines):
        if count < _MOST_FIRST:
            yield line
        else:
            last.append(line)
    yield from last


def _pieces(blocks: Iterable[bytes], number: int) -> Iterator[_Piece]:
    """Blocks cut where lines end; a line that is longer than is kept is cut anywhere."""
    rest = b""
    for block in blocks:
        data = rest + block
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) < _LONGEST_LINE:
            rest = data
            continue
        cut = cut or len(data)
        rest = data[cut:]
        yield _Piece(data[:cut], number)
        number += newlines(data[:cut])
    if rest:
        yield _Piece(rest, number)


def _windows(data: bytes, triggers: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """Where there is something to look through: whole lines around each trigger, together where they touch."""
    begin = end = -1
    for page in pages_with(data, triggers):
        start, stop = max(0, page - 1) * PAGE, (page + 1 + _PAGES_BEHIND) * PAGE
        start = data.rfind(b"\n", 0, start) + 1
        cut = data.find(b"\n", stop)
        stop = len(data) if cut < 0 else cut + 1
        if begin >= 0 and start > end:
            yield begin, end
            begin = -1
        begin, end = (start if begin < 0 else begin), stop
    if begin >= 0:
        yield begin, end
