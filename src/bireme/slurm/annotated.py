"""A batch script line by line: which lines are read as options, what each option means, and which are only comments.

Beside `understood`, which says what all of them come to. Asked by `POST /v1/explain`, for who looks at a script in a
browser. Pure: text in, values out. Invariant: every line of the script is told once, in order; a line that cannot be
read is told with the error, and the others all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Command, Option, OptionTable
from bireme.slurm.options.errors import OptionError
from bireme.slurm.options.getopt import Given, read_options
from bireme.slurm.options.own_lines import FLAGS as OF_JOBS
from bireme.slurm.script import leading_comments, split_words
from bireme.slurm.serving.flags import AS_OPTIONS, FLAGS

MARK, OWN_MARK = "#SBATCH", "#BIREME"
_OTHERS = ("#PBS", "#BSUB")
MOST_LINES = 5_000
Kind = Literal["interpreter", "options", "comment", "late", "command", "blank", "wrong"]


@dataclass(frozen=True, slots=True)
class Meant:
    """One option of a line."""

    option: str
    value: str
    means: str
    remark: str = ""
    """Why it is not applied, or which line says it again."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str
    kind: Kind
    says: str = ""
    options: tuple[Meant, ...] = ()


_SAYS: dict[str, str] = {
    "interpreter": "The program that runs this script.",
    "late": "Only a comment: options are read before the first command.",
}
_NEXT = "What follows is the next component of a heterogeneous job."
_AGAIN = "said again further below, which counts"
_SERVICE = frozenset(option.name for option in AS_OPTIONS)
_MANY = frozenset(flag.name for flag in FLAGS if flag.many)
_OWN = OptionTable(Command.SBATCH, (*OF_JOBS, *AS_OPTIONS))


def asks_for_service(text: str) -> bool:
    """Whether a script has flags that only services have."""
    return any(given.option.name in _SERVICE for _, line in leading_comments(text) for given in _own_flags(line))


def _own_flags(line: str) -> Sequence[Given]:
    if not line.startswith(OWN_MARK):
        return ()
    try:
        return read_options(_OWN, tuple(split_words(line[len(OWN_MARK) :], "", 0)))[0]
    except OptionError:
        return ()


def annotate(text: str) -> list[Line]:
    """The first `MOST_LINES` lines."""
    read = dict(leading_comments(text))
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    told = [_line(number, line, number in read) for number, line in enumerate(lines[:MOST_LINES], start=1)]
    return _with_repetitions(told)


def _line(number: int, text: str, is_read: bool) -> Line:
    bare = text.strip()
    if number == 1 and bare.startswith("#!"):
        return Line(number, text, "interpreter", _SAYS["interpreter"])
    if not bare:
        return Line(number, text, "blank")
    if not bare.startswith("#"):
        return Line(number, text, "command")
    if not text.startswith((MARK, OWN_MARK, *_OTHERS)):
        return Line(number, text, "comment", _nearly(text))
    if not is_read:
        return Line(number, text, "late", _SAYS["late"])
    if text.startswith(_OTHERS):
        return Line(number, text, "options", "An option of another scheduler, taken over where sbatch has one like it.")
    mark, table = (MARK, TABLES[Command.SBATCH]) if text.startswith(MARK) else (OWN_MARK, _OWN)
    try:
        given, rest = read_options(table, tuple(split_words(text[len(mark) :], "the script", number)))
    except OptionError as error:
        return Line(number, text, "wrong", str(error))
    if rest[:1] in (["hetjob"], ["packjob"]):
        return Line(number, text, "options", _NEXT)
    if any(rest):
        return Line(number, text, "wrong", f"{rest[0][:64]} is no option: they are written --name=value")
    return Line(number, text, "options", "", tuple(_meant(each) for each in given))


def _nearly(text: str) -> str:
    """What looks as if it was meant otherwise."""
    bare = text.lstrip("# \t").upper()
    return f"Only a comment: write {MARK} at the beginning of the line." if bare.startswith("SBATCH ") else ""


def _meant(given: Given) -> Meant:
    option: Option = given.option
    remark = f"accepted, not applied: {option.ignored}" if option.ignored else ""
    return Meant(f"--{option.name}", given.value or "", option.summary, remark)


def _with_repetitions(lines: Sequence[Line]) -> list[Line]:
    """Of an option that is said twice the last one counts."""
    left = Counter(each.option for line in lines for each in line.options)
    if any(line.says == _NEXT for line in lines):
        return list(lines)
    return list(_marked(lines, left))


def _marked(lines: Sequence[Line], left: Counter[str]) -> Iterator[Line]:
    for line in lines:
        meant = []
        for each in line.options:
            left[each.option] -= 1
            again = left[each.option] > 0 and each.option[2:] not in _MANY
            meant.append(Meant(each.option, each.value, each.means, _AGAIN) if again else each)
        yield Line(line.number, line.text, line.kind, line.says, tuple(meant))
