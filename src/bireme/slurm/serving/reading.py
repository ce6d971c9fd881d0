"""Where the flags of a service are written: `#BIREME` lines of a script, and the command line of `bireme serve`.

Both are read with the rules that sbatch has for its own (quotes, `--flag=value` or `--flag value`), but that their
names are written out.
On the command line they stand among sbatch's options, before or after the script; what begins with a dash and is meant
for the script stands after `--`. Pure: words and text in, `Written` values out; what they mean is `building`'s job.
Invariant: a flag that is not known is refused with the name that is nearest to it, in both places.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bireme.slurm.options.catalogue.all_options import OPTIONS, TABLES
from bireme.slurm.options.catalogue.table import Arity, Command, Option, OptionTable
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.getopt import Given, read_options, walk
from bireme.slurm.script import leading_comments, split_words
from bireme.slurm.serving.flags import AS_OPTIONS, BY_NAME
from bireme.slurm.serving.values import Written

MARK = "#BIREME"
LONGEST_LINE = 65536
_SBATCH = "#SBATCH"


class NearestTable(OptionTable):
    """Options that are told with the nearest name when there is none of the name that was written. sbatch's own may be
    shortened, as for sbatch; those of services may not: the next one could begin alike."""

    def matching(self, beginning: str) -> tuple[Option, ...]:
        found = tuple(each for each in super().matching(beginning) if each.name == beginning or each.name in _SHORTENED)
        if not found:
            raise unknown(beginning, [option.name for option in self.options])
        return found


def unknown(name: str, known: Iterable[str], where: str = "") -> OptionError:
    close = difflib.get_close_matches(name[:64], list(known), 1, cutoff=0.6)
    hint = f"did you mean --{close[0]}?" if close else "`bireme serve --help` lists all flags"
    return OptionError(f"{where}there is no flag --{name[:64]}; {hint}")


_SHORTENED = frozenset(option.name for option in OPTIONS)
_IN_SCRIPT = NearestTable(Command.SBATCH, AS_OPTIONS)
_ON_LINE = NearestTable(Command.SBATCH, (*OPTIONS, *AS_OPTIONS))


@dataclass(frozen=True, slots=True)
class Line:
    """A command line of `bireme serve`, taken apart."""

    flags: tuple[Written, ...]
    sbatch: tuple[str, ...]
    """Its other options, and the script with its arguments: what `sbatch` would have been given."""
    script: str
    """Empty: none is named."""


def read_line(words: Sequence[str]) -> Line:
    """Flags and options may stand before and after the script; after `--` all is the script's."""
    given, rest = _options_at_the_beginning(words)
    if rest[:1] == ["--"]:
        rest = [*rest[1:2], *rest[:1], *rest[2:]]
    script, arguments, rest = rest[:1], list[str](), rest[1:]
    while rest and rest[0] != "--":
        more, after = _options_at_the_beginning(rest)
        given += more
        if len(after) == len(rest):
            arguments.append(rest[0])
            after = rest[1:]
        rest = after
    flags = tuple(_written(each) for each in given if each.option.name in BY_NAME)
    options = (word for each in given if each.option.name not in BY_NAME for word in _as_words(each))
    return Line(flags, (*options, *script, *arguments, *rest[1:]), script[0] if script else "")


def _options_at_the_beginning(words: Sequence[str]) -> tuple[list[Given], list[str]]:
    given, position = list[Given](), 0
    for each, position in walk(_ON_LINE, words):  # noqa: B007  # where the last one ends
        given.append(each)
    return given, list(words[position:])


def _written(given: Given, where: str = "") -> Written:
    return Written(given.option.name, given.value or "", where)


def _as_words(given: Given) -> Iterator[str]:
    name = f"--{given.option.name}"
    if given.value is None:
        yield name
    elif given.option.arity is Arity.OPTIONAL:
        yield f"{name}={given.value}"
    else:
        yield from (name, given.value)


@dataclass(frozen=True, slots=True)
class Lines:
    """What the `#BIREME` lines of a script say."""

    flags: tuple[Written, ...]
    warnings: tuple[str, ...] = ()


def read_lines(text: str, file_name: str) -> Lines:
    """`file_name` is for messages."""
    found: list[Written] = []
    last = 0
    for number, line in leading_comments(text):
        last = number
        if line.startswith(MARK):
            found += _read_one(line, file_name, number)
        elif line.startswith(_SBATCH):
            _refuse_flags_of_services(line, file_name, number)
    return Lines(tuple(found), tuple(_unread(text, last, file_name)))


def _read_one(line: str, file_name: str, number: int) -> list[Written]:
    if len(line) > LONGEST_LINE:
        raise OptionError(f"{file_name}: line {number}: a {MARK} line has at most {LONGEST_LINE} characters")
    where = f"{file_name}: line {number}: "
    try:
        given, rest = read_options(_IN_SCRIPT, tuple(split_words(line[len(MARK) :], file_name, number)))
    except OptionError as error:
        raise _placed(error, where, line) from None
    if any(rest):
        raise OptionError(f"{where}{rest[0][:64]!r} is no flag: they are written --replicas=2 or --replicas 2")
    return [_written(each, where) for each in given]


def _placed(error: OptionError, where: str, line: str) -> OptionError:
    """An error of a flag with where it stands, and where an option of sbatch belongs."""
    theirs = next((word for word in _flag_names(line) if word in TABLES[Command.SBATCH] and word not in BY_NAME), None)
    if theirs is not None and f"--{theirs};" in str(error):
        return OptionError(f"{where}--{theirs} is an option of sbatch: write it on a {_SBATCH} line")
    said = str(error)
    return error if said.startswith(where) else OptionError(f"{where}{said}")


def _refuse_flags_of_services(line: str, file_name: str, number: int) -> None:
    ours = next((word for word in _flag_names(line[:LONGEST_LINE]) if word in BY_NAME), None)
    if ours is not None:
        raise OptionError(f"{file_name}: line {number}: --{ours} is a flag of services: write it on a {MARK} line")


def _flag_names(line: str) -> Iterator[str]:
    for word in line.split():
        if word.startswith("--"):
            yield word[2:].partition("=")[0]


def _unread(text: str, last: int, file_name: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), start=1):
        if number > last and line.startswith(MARK):
            yield f"{file_name}: line {number} is not read: {MARK} lines stand before the first command"
            return
