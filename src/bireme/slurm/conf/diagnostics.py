"""What a configuration file can be told about: where it says something, and what is wrong with it.

Parsers collect everything they find and go on, so that an administrator sees all mistakes at once. Nothing here
reads files. Used by every module of this package; callers see `Diagnostic` (warnings) and `ConfigurationError`.
Invariant: every diagnostic names a file and, unless it is about a file as a whole, a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from bireme.slurm.errors import SlurmSyntaxError


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a file; line 0 is the file as a whole."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Diagnostic:
    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class ConfigurationError(SlurmSyntaxError):
    """The files contradict themselves or cannot be read. `diagnostics` has one entry per mistake."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n".join(map(str, self.diagnostics)))


Keys = tuple[str, Iterable[str]]
"""(where they may stand, in words that follow a key; the keys)."""


_NEAR = 0.7


def nearest(key: str, own: Iterable[str], *others: Keys) -> str:
    """`; did you mean MaxTime of a PartitionName line?`, or nothing when no key is like this one."""
    best, hint = _NEAR, ""
    for where, known in (("", own), *others):
        for name in sorted(known):
            likeness = SequenceMatcher(None, key.lower(), name.lower()).ratio()
            if likeness > best:
                best, hint = likeness, f"; did you mean {name}{where}?"
    return hint


@dataclass(slots=True)
class Findings:
    """Collects warnings and errors while files are read."""

    warnings: list[Diagnostic] = field(default_factory=list)
    errors: list[Diagnostic] = field(default_factory=list)

    def warn(self, place: Place, message: str) -> None:
        self.warnings.append(Diagnostic(place, message))

    def error(self, place: Place, message: str) -> None:
        self.errors.append(Diagnostic(place, message))

    def unknown_key(self, place: Place, key: str, known: Iterable[str], where: str = "", *others: Keys) -> None:
        """As in Slurm, one unknown key refuses the file: a misspelt `Gres` would be a cluster without GPUs.

        `others`: keys of other lines or files, looked through for a name that is meant when none of `known` is near.
        """
        hint = nearest(key, known, *others)
        self.error(place, f"Parsing error at unrecognized key: {key}{where}{hint}")

    def raise_errors(self) -> None:
        if self.errors:
            raise ConfigurationError(self.errors)
