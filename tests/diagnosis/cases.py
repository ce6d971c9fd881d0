"""The cases of `cases/*.toml`: what a job left behind, what its cause was, and where that is from.

A case belongs to one of two parts by its source alone: the repository (or host) that it is from, so that what rules may
look at and what only scores never share one. Nobody chooses: a digest of the name does.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bireme.core.diagnosis.judging import judge
from bireme.core.diagnosis.model import Diagnosis, Line, Source
from bireme.evidence.rulebook import Loaded

FOLDER = Path(__file__).parent / "cases"
Part = Literal["seen", "scored"]


@dataclass(frozen=True)
class Case:
    """One end of a job."""

    name: str
    cause: str
    source: str
    log: str = ""
    kernel: str = ""
    record: str = ""
    trusted: bool = False
    """The log is what the job itself wrote, not a file that somebody hands in."""

    @property
    def origin(self) -> str:
        """Who it is from: a repository, a host, or that it is made up."""
        if self.source.startswith("https://"):
            return self.source.split("/")[2]
        return self.source.partition("#")[0].partition(":")[0]

    @property
    def part(self) -> Part:
        return "scored" if hashlib.sha256(self.origin.encode()).digest()[0] % 5 < 2 else "seen"

    def lines(self) -> Iterator[Line]:
        sources: tuple[tuple[Source, str], ...] = (
            ("output" if self.trusted else "file", self.log),
            ("kernel", self.kernel),
            ("record", self.record),
        )
        for source, text in sources:
            written = text.strip("\n").split("\n")
            for place, each in enumerate(written, 1):
                yield Line(text=each, source=source, file=source, order=place, number=place, last=len(written))


def all_cases() -> list[Case]:
    return [
        Case(**table) for path in sorted(FOLDER.glob("*.toml")) for table in tomllib.loads(path.read_text())["case"]
    ]


def diagnosed(case: Case, loaded: Loaded) -> Diagnosis:
    book = loaded.book()
    return judge([clue for line in case.lines() for clue in book.clues(line)], loaded.causes)
