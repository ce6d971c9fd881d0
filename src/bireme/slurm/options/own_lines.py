"""What a batch script asks of Bireme alone: the `#BIREME` lines of a job, comments to Slurm.

Flags are written as those of services are (`slurm/serving`), which may stand in the same script and are passed over
here. Pure. Called by `batch`; what the values mean is said by the fields of JobSpec that they become.
Invariant: a flag that nobody knows is refused with the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Arity, Command, Kind, Option, OptionTable
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.getopt import Given, read_options
from bireme.slurm.script import leading_comments, split_words

MARK = "#BIREME"
_LONGEST_LINE = 65_536
_LONGEST_PATH = 4_096
HEALS = ("restart", "off")
_FIELDS = {"heal": "heal", "checkpoint": "checkpoint_path"}
"""By the flag: the field of JobSpec."""


def _flag(name: str, argument: str, summary: str) -> Option:
    return Option(
        name=name,
        arity=Arity.REQUIRED,
        argument=argument,
        kind=Kind.TEXT,
        commands=frozenset({Command.SBATCH}),
        variables={},
        summary=summary,
        section="Healing",
    )


FLAGS = (
    _flag("checkpoint", "PATH", "where it leaves its checkpoints: a file, a folder or a pattern"),
    _flag("heal", "restart|off", "whether it is started again after a failure that is not its own fault"),
)


class _NearestTable(OptionTable):
    """Flags whose names are written out; one that is not known is told with the nearest name."""

    def matching(self, beginning: str) -> tuple[Option, ...]:
        found = tuple(each for each in super().matching(beginning) if each.name == beginning)
        if not found:
            raise _unknown(beginning, [option.name for option in self.options])
        return found


def _unknown(name: str, known: list[str]) -> OptionError:
    if name in TABLES[Command.SBATCH]:
        return OptionError(f"--{name} is an option of sbatch: write it on a #SBATCH line")
    close = difflib.get_close_matches(name[:64], known, 1, cutoff=0.6)
    hint = f"did you mean --{close[0]}?" if close else f"jobs have {', '.join(f'--{each.name}' for each in FLAGS)}"
    return OptionError(f"there is no flag --{name[:64]}; {hint}")


def fields_of_lines(text: str, file_name: str, others: tuple[Option, ...]) -> dict[str, Any]:
    """The fields of JobSpec that the `#BIREME` lines of a script give; the last one counts. `others`: flags that are
    not a job's, and not looked at."""
    table = _NearestTable(Command.SBATCH, (*FLAGS, *others))
    fields: dict[str, Any] = {}
    for number, line in leading_comments(text):
        if not line.startswith(MARK):
            continue
        where = f"{file_name}: line {number}: "
        try:
            for given in _given(table, line, file_name, number):
                if given.option.name in _FIELDS:
                    fields[_FIELDS[given.option.name]] = checked(given.option.name, given.value or "")
        except OptionError as error:
            said = str(error)
            raise (error if said.startswith(where) else OptionError(f"{where}{said}")) from None
    return fields


def _given(table: OptionTable, line: str, file_name: str, number: int) -> Iterator[Given]:
    if len(line) > _LONGEST_LINE:
        raise OptionError(f"a {MARK} line has at most {_LONGEST_LINE} characters")
    given, rest = read_options(table, tuple(split_words(line[len(MARK) :], file_name, number)))
    if any(rest):
        raise OptionError(f"{rest[0][:64]!r} is no flag: they are written --heal=restart or --heal restart")
    yield from given


def checked(name: str, value: str) -> str:
    """The value of a flag, or an OptionError that says what it may be."""
    if name == "heal" and value not in HEALS:
        raise OptionError(f"--heal={value[:64]}: it is one of {', '.join(HEALS)}")
    if name == "checkpoint" and not 0 < len(value) <= _LONGEST_PATH:
        raise OptionError(f"--checkpoint needs a path of 1 to {_LONGEST_PATH} characters")
    return value
