"""Reads a command line the way getopt_long does for Slurm's commands.

Long names may be shortened while they stay unambiguous, values follow `=` or the next word, short options may be
bundled (`-HN2`), reading stops at the first word that is not an option, and `--` ends the options. What a value
means is not known here. A `:` between components of a heterogeneous job starts the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bireme.slurm.options.catalogue.table import Arity, Command, Option, OptionTable
from bireme.slurm.options.errors import OptionError, Severity

HET_SEPARATOR = ":"


@dataclass(frozen=True, slots=True)
class Given:
    """An option as it was written. `value` is None when none was given."""

    option: Option
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """One component's options and what follows them: the script or program, and its arguments."""

    options: tuple[Given, ...]
    words: tuple[str, ...]


def usage_error(message: str) -> OptionError:
    return OptionError(message, severity=Severity.USAGE)


def walk(table: OptionTable, words: Sequence[str]) -> Iterator[tuple[Given, int]]:
    """The options at the beginning of `words`, one after another, each with the position of the next word."""
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-", "--"):
        word = words[position]
        following = words[position + 1] if position + 1 < len(words) else None
        read = _read_long if word.startswith("--") else _read_short
        found, took_following = read(table, word, following)
        position += 2 if took_following else 1
        for given in found:
            yield given, position


def read_options(table: OptionTable, words: Sequence[str]) -> tuple[list[Given], list[str]]:
    """The options at the beginning of `words`, and the words after them."""
    given: list[Given] = []
    position = 0
    for option, after in walk(table, words):
        given.append(option)
        position = after
    if position < len(words) and words[position] == "--":
        position += 1
    return given, list(words[position:])


def _read_long(table: OptionTable, word: str, following: str | None) -> tuple[list[Given], bool]:
    """The option of `--name` or `--name=value`, and whether the following word was its value."""
    name, equals, value = word[2:].partition("=")
    option = _find_long(table, word, name)
    if equals:
        if option.arity is Arity.NONE:
            raise usage_error(f"option '--{option.name}' doesn't allow an argument")
        return [Given(option, value)], False
    if option.arity is not Arity.REQUIRED:
        return [Given(option)], False
    if following is None:
        raise usage_error(f"option '--{option.name}' requires an argument")
    return [Given(option, following)], True


def _find_long(table: OptionTable, word: str, name: str) -> Option:
    candidates = table.matching(name) if name else ()
    if not candidates:
        raise usage_error(f"unrecognized option '{word}'")
    if len(candidates) > 1:
        listed = " ".join(f"'--{option.name}'" for option in candidates)
        raise usage_error(f"option '{word}' is ambiguous; possibilities: {listed}")
    return candidates[0]


def _read_short(table: OptionTable, word: str, following: str | None) -> tuple[list[Given], bool]:
    """The options bundled in `-HN2`, and whether the following word was the last one's value."""
    given: list[Given] = []
    for index, letter in enumerate(word[1:], start=1):
        option = table.with_letter(letter)
        if option is None:
            raise usage_error(f"invalid option -- '{letter}'")
        if option.arity is Arity.NONE:
            given.append(Given(option))
            continue
        rest = word[index + 1 :]
        if rest or option.arity is Arity.OPTIONAL:
            given.append(Given(option, rest or None))
            return given, False
        if following is None:
            raise usage_error(f"option requires an argument -- '{letter}'")
        given.append(Given(option, following))
        return given, True
    return given, False


def read_command_line(table: OptionTable, words: Sequence[str]) -> tuple[Component, ...]:
    """The components of a command line; an ordinary one has one.

    sbatch and salloc take `OPTIONS : OPTIONS script`; srun `OPTIONS program : OPTIONS program`.
    """
    components: list[Component] = []
    rest = list(words)
    while True:
        given, rest = read_options(table, rest)
        if table.command is Command.SRUN:
            own, rest, more = _until_separator(rest)
        else:
            more = bool(rest) and rest[0] == HET_SEPARATOR
            own, rest = ([], rest[1:]) if more else (rest, [])
        components.append(Component(tuple(given), tuple(own)))
        if not more:
            return tuple(components)


def _until_separator(words: list[str]) -> tuple[list[str], list[str], bool]:
    if HET_SEPARATOR not in words:
        return words, [], False
    index = words.index(HET_SEPARATOR)
    return words[:index], words[index + 1 :], True
