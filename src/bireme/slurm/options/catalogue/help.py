"""`--help` and `--usage` of sbatch, srun and salloc, made from the catalogue.

Text out; printing is the command's job.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from bireme.slurm.options.catalogue.all_options import OPTIONS, TABLES
from bireme.slurm.options.catalogue.table import Arity, Command, Option
from bireme.slurm.options.layers import Options

_SYNOPSIS = {
    Command.SBATCH: "sbatch [OPTIONS] [: [OPTIONS]...] [SCRIPT [ARGUMENTS...]]",
    Command.SRUN: "srun [OPTIONS] PROGRAM [ARGUMENTS...] [: [OPTIONS] PROGRAM [ARGUMENTS...]]",
    Command.SALLOC: "salloc [OPTIONS] [: [OPTIONS]...] [PROGRAM [ARGUMENTS...]]",
}
_PURPOSE = {
    Command.SBATCH: "Submits a batch script. Without SCRIPT it is read from standard input.",
    Command.SRUN: "Runs tasks: in the job it is called from, or else in a job of its own.",
    Command.SALLOC: "Gets an allocation, runs a program (or a shell) while holding it, and gives it back.",
}
_NOT_APPLIED = "(*)"
_COLUMN = 32
_WIDTH = 100


def help_text(command: Command) -> str:
    """The whole list, section by section. An option that is accepted but not applied says so."""
    lines = [f"Usage: {_SYNOPSIS[command]}", "", _PURPOSE[command]]
    known = [option for option in OPTIONS if command in option.commands]
    for section, options in _sections(known).items():
        lines += ["", f"{section}:"]
        for option in options:
            lines += entry(option, option.summary + (f" {_NOT_APPLIED}" if option.ignored else ""))
    return "\n".join([*lines, "", f"{_NOT_APPLIED} accepted, not applied yet", ""])


def usage_text(command: Command) -> str:
    """The options alone, in a paragraph."""
    written = " ".join(f"[{_signature(option)}]" for option in TABLES[command].options if not option.alias_of)
    indent = " " * (len(f"Usage: {command} "))
    body = textwrap.fill(
        written, _WIDTH, initial_indent=f"Usage: {command} ", subsequent_indent=indent, break_on_hyphens=False
    )
    return body + "\n"


def notices(options: Options) -> list[str]:
    """One line for each option given but not applied, whatever the engine, to be said once on standard error."""
    table = TABLES[options.command]
    return [_notice(name, table[name].ignored) for name in options.ignored() if not table[name].elsewhere]


def depends_on_engine(components: Iterable[Options]) -> bool:
    """Whether an option is given that some engine does not apply, and another does."""
    return any(TABLES[options.command][name].elsewhere for options in components for name in options.ignored())


def engine_notices(components: Iterable[Options], engine: str, *, step: bool = False) -> list[str]:
    """One line for each option given that this engine, unlike others, does not apply. `step`: they are of a step in a
    job.

    Of two engines beside each other that counts which places jobs itself, the first.
    """
    place = engine.partition("+")[0] + (" step" if step else "")
    said: dict[str, None] = {}
    for options in components:
        table = TABLES[options.command]
        for name in options.ignored():
            reason = table[name].elsewhere.get(place, table[name].ignored)
            if table[name].elsewhere and reason:
                said[_notice(name, reason)] = None
    return list(said)


def is_applied(name: str, engine: str) -> bool:
    """Whether jobs on this engine get what this option asks for."""
    option = next((option for option in OPTIONS if option.name == name), None)
    return option is None or not option.elsewhere.get(engine.partition("+")[0], option.ignored)


def _notice(name: str, reason: str) -> str:
    return f"--{name} is accepted but not applied: {reason}"


def _sections(options: Iterable[Option]) -> dict[str, list[Option]]:
    sections: dict[str, list[Option]] = {}
    for option in options:
        sections.setdefault(option.section, []).append(option)
    return sections


def _signature(option: Option) -> str:
    value = {
        Arity.NONE: "",
        Arity.OPTIONAL: f"[={option.argument}]",
        Arity.REQUIRED: f"={option.argument}",
    }[option.arity]
    return f"--{option.name}{value}"


def entry(option: Option, summary: str) -> list[str]:
    """The lines of one option: its names on the left, what it does on the right."""
    left = (f"  -{option.short}, " if option.short else "      ") + _signature(option)
    wrapped = textwrap.wrap(summary, _WIDTH - _COLUMN) or [""]
    if len(left) < _COLUMN - 1:
        first, rest = [left.ljust(_COLUMN) + wrapped[0]], wrapped[1:]
    else:
        first, rest = [left], wrapped
    return first + [" " * _COLUMN + line for line in rest]
