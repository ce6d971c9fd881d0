"""What a configuration file can be told about: where it says something, and what is wrong with it.

Parsers collect everything they find and go on, so that an administrator sees all mistakes at once. Nothing here
reads files. Used by every module of this package; callers see `Diagnostic` (warnings) and `ConfigurationError`.
Invariant: every diagnostic names a file and, unless it is about a file as a whole, a line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches

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


@dataclass(slots=True)
class Findings:
    """Collects warnings and errors while files are read."""

    warnings: list[Diagnostic] = field(default_factory=list)
    errors: list[Diagnostic] = field(default_factory=list)

    def warn(self, place: Place, message: str) -> None:
        self.warnings.append(Diagnostic(place, message))

    def error(self, place: Place, message: str) -> None:
        self.errors.append(Diagnostic(place, message))

    def unknown_key(self, place: Place, key: str, known: Iterable[str], where: str = "") -> None:
        """Slurm refuses a file for one unknown key; a warning keeps files of newer versions usable."""
        by_lower = {name.lower(): name for name in known}
        close = get_close_matches(key.lower(), by_lower, n=1, cutoff=0.9)
        hint = f"; did you mean {by_lower[close[0]]}?" if close else ""
        self.warn(place, f"unknown key {key}{where} is ignored{hint}")

    def raise_errors(self) -> None:
        if self.errors:
            raise ConfigurationError(self.errors)
