"""Two sets of items side by side: which are the same, which differ, which differ as is known and why.

Pure. Invariant: an item is counted once, and a known difference counts as a difference, never as the same.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from itertools import zip_longest
from pathlib import Path

DIFFERENCES = Path(__file__).with_name("differences.toml")
ABSENT = "(absent)"
Release = tuple[int, int]
FIRST_RELEASE, LAST_RELEASE = (0, 0), (99, 99)


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that is meant or accepted.

    `kind`: improvement (ours says or does more), machine (of several nodes on one host, or of our version number),
    version (as newer releases have it), timing (both are right), differs (known, and not changed).
    `touches`: the names in COMPATIBILITY.md that it makes differ, as `squeue -O stdout`.
    """

    cases: str
    items: tuple[str, ...]
    kind: str
    reason: str
    only_ours: bool = False
    """Covers only what Slurm does not say at all."""
    touches: tuple[str, ...] = ()
    says: str = ""
    """Covers only what either of them says so."""
    since: Release = FIRST_RELEASE
    until: Release = LAST_RELEASE
    """With which releases of Slurm it shows itself, both of them included."""

    @property
    def releases(self) -> str:
        """In words; empty: all of them."""
        first = f"from {_dotted(self.since)}" if self.since != FIRST_RELEASE else ""
        last = f"to {_dotted(self.until)}" if self.until != LAST_RELEASE else ""
        return f"{first} {last}".strip()

    def covers(self, case: str, item: str, slurm: str, bireme: str) -> bool:
        if not fnmatchcase(case, self.cases) or (self.only_ours and slurm != ABSENT):
            return False
        if self.says and not any(fnmatchcase(said, self.says) for said in (slurm, bireme)):
            return False
        return any(fnmatchcase(item, pattern) for pattern in self.items)


@dataclass(frozen=True, slots=True)
class Difference:
    item: str
    slurm: str
    bireme: str
    known: Known | None = None


@dataclass(slots=True)
class Outcome:
    """What came out of one case."""

    title: str
    total: int
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def same(self) -> int:
        return self.total - len(self.differences)

    @property
    def unknown(self) -> list[Difference]:
        return [one for one in self.differences if one.known is None]

    def show(self, differences: list[Difference] | None = None) -> str:
        said = [f"{self.title}: {self.same} of {self.total} items are the same"]
        for one in self.unknown if differences is None else differences:
            mark = f"   (known: {one.known.reason})" if one.known else ""
            said.append(f"  {one.item}{mark}\n    slurm : {one.slurm}\n    bireme: {one.bireme}")
        return "\n".join(said)


def known_differences(version: Release) -> list[Known]:
    """Those that show themselves with this release of Slurm."""
    return [one for one in listed_differences() if one.since <= version <= one.until]


def listed_differences() -> list[Known]:
    return [
        Known(
            entry["cases"],
            tuple(entry["items"]),
            entry["kind"],
            entry["reason"],
            entry.get("only_ours", False),
            tuple(entry.get("touches", ())),
            entry.get("says", ""),
            _release(entry.get("since", FIRST_RELEASE)),
            _release(entry.get("until", LAST_RELEASE)),
        )
        for entry in tomllib.loads(DIFFERENCES.read_text())["difference"]
    ]


def _release(numbers: Sequence[int]) -> Release:
    major, minor = numbers
    return major, minor


def _dotted(release: Release) -> str:
    return f"{release[0]}.{release[1]:02}"


def compare(title: str, slurm: dict[str, str], bireme: dict[str, str], known: list[Known]) -> Outcome:
    slurm, bireme = aligned(slurm, bireme)
    items = list(dict.fromkeys([*slurm, *bireme]))
    outcome = Outcome(title, len(items))
    for item in items:
        theirs, ours = slurm.get(item, ABSENT), bireme.get(item, ABSENT)
        if theirs != ours:
            listed = next((one for one in known if one.covers(title, item, theirs, ours)), None)
            outcome.differences.append(Difference(item, theirs, ours, listed))
    return outcome


def aligned(slurm: dict[str, str], bireme: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Numbered lines under common numbers: a line that only one of them has does not move those after it."""
    theirs, ours = dict(slurm), dict(bireme)
    for text in dict.fromkeys(_text_of(name) for name in (*slurm, *bireme)):
        if text is not None:
            left, right = _lines(slurm, text), _lines(bireme, text)
            for lines, items in ((left, theirs), (right, ours)):
                for number in range(1, len(lines) + 1):
                    del items[f"{text} {number}"]
            for number, (one, other) in enumerate(_paired(left, right), 1):
                theirs |= {} if one is None else {f"{text} {number}": one}
                ours |= {} if other is None else {f"{text} {number}": other}
    return theirs, ours


def _text_of(item: str) -> str | None:
    text, _, number = item.rpartition(" ")
    return text if number.isdigit() and text.startswith(("out", "err", "file")) else None


def _lines(items: dict[str, str], text: str) -> list[str]:
    found = []
    while f"{text} {len(found) + 1}" in items:
        found.append(items[f"{text} {len(found) + 1}"])
    return found


def _paired(left: list[str], right: list[str]) -> Iterator[tuple[str | None, str | None]]:
    """Equal lines side by side, then what stands between them, in order."""
    for _, first, last, begin, end in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        yield from zip_longest(left[first:last], right[begin:end])


def unused(known: list[Known], outcomes: list[Outcome]) -> list[Known]:
    """Known differences that no case showed, of those whose cases ran: the list must stay true.

    One of timing may show itself at one time and not at another.
    """
    known = [one for one in known if one.kind != "timing"]
    used = [one.known for outcome in outcomes for one in outcome.differences]
    ran = [outcome.title for outcome in outcomes]
    return [one for one in known if one not in used and any(fnmatchcase(title, one.cases) for title in ran)]
