"""From the text of a configuration file to lines of `Key=value` pairs, each with its place.

Knows what all of Slurm's files share: comments and `\\#`, continued lines, quotes, `Include`. Knows no key. Called by
`loading` for each file. Pure: included files are read through the caller's `read`.
Invariant: a `Line` has at least one pair and the place of its first physical line.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bireme.slurm.conf.diagnostics import Findings, Place

Read = Callable[[str], str]
"""Gives the text of a file; raises OSError (FileNotFoundError when it is not there)."""

MAX_INCLUDE_DEPTH = 16

_PAIR = re.compile(
    r"""\s*(?P<key>[\w.]+)\s*[-*+/]?=\s*(?:"(?P<quoted>[^"]*)"(?=\s|\Z)|(?P<plain>\S+))""",
    re.ASCII,
)
"""Spaces may stand around the equals sign: what comes after them is the value, whatever it looks like, as Slurm reads
it (`SchedulerParameters = bf_interval=1`)."""
_KEY_ALONE = re.compile(r"\s*(?P<key>[\w.]+)\s*[-*+/]?=\s*\Z", re.ASCII)
_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)#.*", re.DOTALL)
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*(\\)\s*\Z")
_INCLUDE = re.compile(r"\s*include\s+(.*\S)\s*\Z", re.IGNORECASE | re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line. Keys keep their spelling; look-ups ignore case."""

    pairs: tuple[tuple[str, str], ...]
    place: Place

    def get(self, *keys: str) -> str | None:
        """The value of the last of these keys on the line, or None."""
        wanted = {key.lower() for key in keys}
        found = None
        for key, value in self.pairs:
            if key.lower() in wanted:
                found = value
        return found


def read_lines(path: str, read: Read, findings: Findings) -> list[Line]:
    """All lines of a file and of the files it includes, in order. Raises OSError only for `path` itself."""
    return _lines_of(path, read(path), read, findings, _Inclusion(posixpath.dirname(path)))


def parse_lines(text: str, file: str, findings: Findings) -> list[Line]:
    """The lines of a text that includes nothing (an `Include` in it is an error)."""

    def refuse(path: str) -> str:
        raise FileNotFoundError(f"nothing can be included here: {path}")

    return _lines_of(file, text, refuse, findings, _Inclusion(posixpath.dirname(file)))


@dataclass(slots=True)
class _Inclusion:
    """What `Include` needs to know: where relative paths start, %c, and how deep we are."""

    folder: str
    cluster: str = ""
    depth: int = 0

    def resolve(self, written: str) -> str:
        return posixpath.join(self.folder, written.strip('"').replace("%c", self.cluster))


def _lines_of(file: str, text: str, read: Read, findings: Findings, inclusion: _Inclusion) -> list[Line]:
    lines: list[Line] = []
    for place, logical in _logical_lines(file, text):
        include = _INCLUDE.match(logical)
        if include:
            lines += _included(include[1], place, read, findings, inclusion)
            continue
        pairs = _pairs_of(logical, place, findings)
        if pairs:
            line = Line(pairs, place)
            inclusion.cluster = line.get("ClusterName") or inclusion.cluster
            lines.append(line)
    return lines


def _included(written: str, place: Place, read: Read, findings: Findings, inclusion: _Inclusion) -> list[Line]:
    path = inclusion.resolve(written)
    if inclusion.depth >= MAX_INCLUDE_DEPTH:
        findings.error(place, f"Include {written}: files include each other more than {MAX_INCLUDE_DEPTH} deep")
        return []
    try:
        text = read(path)
    except OSError as error:
        findings.error(place, f"Include {written}: cannot read {path}: {error.strerror or error}")
        return []
    inclusion.depth += 1
    lines = _lines_of(path, text, read, findings, inclusion)
    inclusion.depth -= 1
    return lines


def _logical_lines(file: str, text: str) -> Iterator[tuple[Place, str]]:
    """Comments cut off, continued lines joined, `\\#` made `#`. A comment does not hide a continuation before it."""
    joined = ""
    first = 0
    for number, physical in enumerate(text.split("\n"), start=1):
        first = first or number
        bare = _COMMENT.sub(r"\1", physical.rstrip("\r"))
        continued = _CONTINUED.search(bare)
        if continued:
            joined += bare[: continued.start(1)] + " "
            continue
        joined += bare
        if joined.strip():
            yield Place(file, first), _ESCAPE.sub(r"\1", joined)
        joined, first = "", 0
    if joined.strip():
        yield Place(file, first), _ESCAPE.sub(r"\1", joined)


def _pairs_of(logical: str, place: Place, findings: Findings) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    at = 0
    while logical[at:].strip():
        match = _PAIR.match(logical, at)
        if match is None or match.end() == at:
            rest = logical[at:].strip()
            alone = _KEY_ALONE.match(logical, at)
            why = f"{alone['key']} has no value; give it one, or leave it out" if alone else "it is not Key=value"
            findings.error(place, f'Parse error at "{rest}": {why}')
            break
        pairs.append((match["key"], match["plain"] or match["quoted"] or ""))
        at = match.end()
    return tuple(pairs)
