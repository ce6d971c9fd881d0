"""Which of several settings wins: the command line over the environment over the script's `#SBATCH` lines.

`resolve` reads the three layers of each component and returns `Options`, one for an ordinary job. Within a layer the
last setting wins. The exception that Slurm makes: a memory option of the command line or script removes another
memory option that came from the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import EXPEDITE, Arity, Command, Kind, OptionTable
from bireme.slurm.options.errors import OptionError, fatal
from bireme.slurm.options.getopt import Given, read_command_line, read_options, walk
from bireme.slurm.options.values import Moment, parse_value
from bireme.slurm.script import Directive, Directives

T = TypeVar("T")

_NOT_FROM_SCRIPT = frozenset({"help", "usage", "version", "wrap", "verbose", "quiet"})
"""Slurm reads these in a script and does nothing with them."""
_ONLY_INSIDE_A_JOB = frozenset({"SLURM_STEP_GRES"})
_ONLY_OUTSIDE_A_JOB = frozenset({"SLURM_JOB_NAME", "SLURM_GRES"})
_PYXIS_SAYS = {"1": "yes", "true": "yes", "0": "no", "false": "no"}
"""Other values of its variables say nothing."""
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


class Source(IntEnum):
    """Where a setting came from; the higher wins."""

    SCRIPT = 1
    ENVIRONMENT = 2
    COMMAND_LINE = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's typed value, how it was written, where it came from, and how many times it was given there."""

    value: object
    text: str | None
    source: Source
    times: int = 1


@dataclass(slots=True)
class Options:
    """The options of one component after precedence, by long name, with typed access."""

    command: Command
    settings: dict[str, Setting] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    """The script or program, and its arguments."""

    def __contains__(self, name: str) -> bool:
        return name in self.settings

    def flag(self, name: str) -> bool:
        setting = self.settings.get(name)
        return setting is not None and setting.value is True

    def times(self, name: str) -> int:
        return self.settings[name].times if name in self.settings else 0

    def text(self, name: str, default: str = "") -> str:
        value = self.typed(name, str)
        return default if value is None else value

    def number(self, name: str) -> int | None:
        return self.typed(name, int)

    def typed(self, name: str, kind: type[T]) -> T | None:
        """The value, or None where the option was not given or its value is 'none' (as an unlimited time is)."""
        setting = self.settings.get(name)
        if setting is None or setting.value is None:
            return None
        assert isinstance(setting.value, kind), f"--{name} is a {type(setting.value).__name__}"
        return setting.value

    def written(self, name: str) -> str | None:
        """The value as the user wrote it."""
        return self.settings[name].text if name in self.settings else None

    def source(self, name: str) -> Source | None:
        return self.settings[name].source if name in self.settings else None

    def from_environment(self, name: str) -> bool:
        return self.source(name) is Source.ENVIRONMENT

    def asked(self, name: str) -> bool:
        """Given by the user's own hand: on the command line or in the script."""
        return name in self.settings and not self.from_environment(name)

    def ignored(self) -> tuple[str, ...]:
        """The options given but not applied yet, here or by some engine, in order of name.

        Of srun's environment none: there a job's own variables repeat what was said when it was submitted.
        """
        table = TABLES[self.command]
        unapplied = (name for name in self.settings if not table[name].honoured_everywhere)
        inherits = self.command is Command.SRUN
        return tuple(sorted(name for name in unapplied if not (inherits and self.from_environment(name))))


def resolve(
    command: Command,
    argv: Sequence[str],
    environment: Mapping[str, str],
    moment: Moment,
    directives: Directives | None = None,
    *,
    inside_job: bool = False,
) -> tuple[Options, ...]:
    """The options of each component. `argv` is what follows the command's name.

    Component N of the script and component N of the command line describe the same part of a heterogeneous job;
    the environment applies to all of them.
    """
    table = TABLES[command]
    from_line = read_command_line(table, argv)
    from_script = [list(_from_script(table, lines)) for lines in directives.components] if directives else []
    from_environment = list(_from_environment(table, environment, inside_job))
    resolved: list[Options] = []
    for index in range(max(len(from_line), len(from_script))):
        options = Options(command)
        _apply(options, from_script[index] if index < len(from_script) else [], Source.SCRIPT, moment)
        _apply(options, from_environment, Source.ENVIRONMENT, moment)
        if index < len(from_line):
            _apply(options, from_line[index].options, Source.COMMAND_LINE, moment)
            options.words = from_line[index].words
        _settle_memory(options)
        resolved.append(options)
    return tuple(resolved)


def find_script(argv: Sequence[str]) -> tuple[str, ...]:
    """The script and its arguments on sbatch's command line, for whoever has to read the file first."""
    return read_command_line(TABLES[Command.SBATCH], argv)[-1].words


def peek(command: Command, argv: Sequence[str]) -> dict[str, str | None]:
    """What a command line says before anything is judged: option -> value as written. For --help, --chdir, --wrap."""
    components = read_command_line(TABLES[command], argv)
    return {given.option.key: given.value for component in components for given in component.options}


def question(command: Command, argv: Sequence[str]) -> str | None:
    """`help`, `usage` or `version`, whichever the command line asks for first; what comes after it is not judged."""
    for given, _ in walk(TABLES[command], argv):
        if given.option.name in ("help", "usage", "version"):
            return given.option.name
    return None


def _from_script(table: OptionTable, lines: Iterable[Directive]) -> Iterator[Given]:
    for line in lines:
        given, rest = read_options(table, line.words)
        if any(rest):  # Slurm lets an empty word ("") pass
            raise OptionError(f"Invalid directive found in batch script: {rest[0]}")
        yield from (each for each in given if each.option.name not in _NOT_FROM_SCRIPT)


def _from_environment(table: OptionTable, environment: Mapping[str, str], inside_job: bool) -> Iterator[Given]:
    skipped = _ONLY_OUTSIDE_A_JOB if inside_job else _ONLY_INSIDE_A_JOB
    for option in table.options:
        for variable in option.variables.get(table.command, ()):
            if variable not in environment or variable in skipped:
                continue
            value = environment[variable]
            if option.kind is Kind.EITHER:
                if (said := _PYXIS_SAYS.get(value)) is not None:
                    yield Given(option, said)
            elif option.kind is Kind.FLAG or (option.kind is Kind.REQUEUE and value != EXPEDITE):
                if means_yes(value):
                    yield Given(option)
            else:
                yield Given(option, None if not value and option.arity is Arity.OPTIONAL else value)


def means_yes(value: str) -> bool:
    """How Slurm reads a variable of an option without value."""
    if value.lower() in ("", "yes"):
        return True
    digits = value.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and int(digits[:20]) != 0


def _apply(options: Options, given: Iterable[Given], source: Source, moment: Moment) -> None:
    seen: dict[str, int] = {}
    for each in given:
        key = each.option.key
        value = parse_value(each, moment)
        if each.option.kind is Kind.EITHER and key in seen and options.settings[key].value is not value:
            names = " and ".join(f"--{option.name}" for option in TABLES[options.command].options if option.key == key)
            raise OptionError(f"pyxis: both {names} were specified")
        seen[key] = seen.get(key, 0) + 1
        options.settings[key] = Setting(value, each.value, source, seen[key])


def _settle_memory(options: Options) -> None:
    """At most one of --mem, --mem-per-cpu and --mem-per-gpu, one by hand over one from the environment."""
    by_hand = [name for name in _MEMORY if options.asked(name)]
    by_environment = [name for name in _MEMORY if options.from_environment(name)]
    if len(by_hand) > 1:
        raise fatal("--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.")
    if not by_hand and len(by_environment) > 1:
        raise fatal("SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive.")
    if by_hand:
        for name in by_environment:
            del options.settings[name]
