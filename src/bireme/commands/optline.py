"""getopt_long for the commands that look: squeue, sinfo, sacct, sstat, scontrol.

Options may stand anywhere (these commands have no program to run, unlike sbatch and srun, whose reader is
`slurm/options/getopt`), long names may be shortened, short ones bundled. Refusals have getopt's words, because
people search for them. No third-party or heavy import: these commands start hundreds of times a minute inside jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class OptionLineError(Exception):
    """getopt's message, without the command's name."""


class Opt(NamedTuple):
    """`name` is the long name; `value`: "" takes none, "required", "optional"."""

    short: str
    name: str
    value: str = ""
    alias_of: str = ""

    @property
    def key(self) -> str:
        return self.alias_of or self.name


def options(text: str) -> list[Opt]:
    """A table from words: `-o--format=` (value required), `-j--jobs[=]` (optional), `--array-unique` (none)."""
    table: list[Opt] = []
    for word in text.split():
        short, _, name = word.partition("--")
        value = "optional" if name.endswith("[=]") else "required" if name.endswith("=") else ""
        table.append(Opt(short.removeprefix("-"), name.removesuffix("[=]").removesuffix("="), value))
    return table


def aliases(table: Iterable[Opt], **names: str) -> list[Opt]:
    """The table with further names for options it has: `aliases(table, user="uid")`."""
    rows = list(table)
    by_name = {row.name: row for row in rows}
    return rows + [Opt("", alias.replace("_", "-"), by_name[name].value, name) for alias, name in names.items()]


def read(
    table: Sequence[Opt], argv: Sequence[str], *, permute: bool = True
) -> tuple[list[tuple[str, str | None]], list[str]]:
    """The options as (long name, value) in order, and the other words."""
    given: list[tuple[str, str | None]] = []
    words: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if word == "--":
            words.extend(argv[position:])
            break
        if not word.startswith("-") or word == "-":
            words.append(word)
            if not permute:
                words.extend(argv[position:])
                break
            continue
        following = argv[position] if position < len(argv) else None
        reader = _read_long if word.startswith("--") else _read_short
        found, took = reader(table, word, following)
        given.extend(found)
        position += took
    return given, words


def _read_long(table: Sequence[Opt], word: str, following: str | None) -> tuple[list[tuple[str, str | None]], int]:
    name, equals, value = word[2:].partition("=")
    option = _find(table, word, name)
    if equals:
        if not option.value:
            raise OptionLineError(f"option '--{option.name}' doesn't allow an argument")
        return [(option.key, value)], 0
    if option.value != "required":
        return [(option.key, None)], 0
    if following is None:
        raise OptionLineError(f"option '--{option.name}' requires an argument")
    return [(option.key, following)], 1


def _find(table: Sequence[Opt], word: str, name: str) -> Opt:
    exact = [option for option in table if option.name == name]
    if exact:
        return exact[0]
    found = [option for option in table if name and option.name.startswith(name)]
    if not found:
        raise OptionLineError(f"unrecognized option '{word}'")
    if len({option.key for option in found}) > 1:
        listed = " ".join(f"'--{option.name}'" for option in found)
        raise OptionLineError(f"option '{word}' is ambiguous; possibilities: {listed}")
    return found[0]


def _read_short(table: Sequence[Opt], word: str, following: str | None) -> tuple[list[tuple[str, str | None]], int]:
    given: list[tuple[str, str | None]] = []
    for index, letter in enumerate(word[1:], start=1):
        option = next((each for each in table if each.short == letter), None)
        if option is None:
            raise OptionLineError(f"invalid option -- '{letter}'")
        if not option.value:
            given.append((option.key, None))
            continue
        rest = word[index + 1 :]
        if rest or option.value == "optional":
            given.append((option.key, rest or None))
            return given, 0
        if following is None:
            raise OptionLineError(f"option requires an argument -- '{letter}'")
        given.append((option.key, following))
        return given, 1
    return given, 0
