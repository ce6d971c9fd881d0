"""What the commands that look share: local time, what they print, and how a failure is told.

Not an output format (`slurm/formats`) and not the API (`surroundings.Port`). Every `main` of squeue, sinfo, sacct,
sstat and scontrol runs inside `guarded`. Invariant: a reader that goes away (`squeue | head`) is never an error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bireme.commands.clusters import VARIABLE, UnknownClusterError, chosen_clusters
from bireme.commands.optline import Opt, OptionLineError, read
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.commands.surroundings import Port, around
from bireme.commands.usage import help_text, usage_text
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.accounting import AccountingColumn, fixed_lines, parsable_lines
from bireme.slurm.formats.fields import Plan
from bireme.slurm.formats.identity import expand_tasks
from bireme.slurm.formats.values import Context
from bireme.slurm.version import VERSION_LINE

DAY_S = 86400
_LINES_AT_ONCE = 256
"""Lines that are made before they are written: a table is never in memory twice."""
_LONGEST_LINE = 64 * 1024
"""Letters; of values that no column cuts."""
_LONGEST_TIME_FORMAT = 128
_MOST_STAMPS = 1024
"""Seconds whose text is kept."""
_MOST_TASKS = 50_000
"""Lines of tasks that wait in arrays, made where others wait."""
MOST_NAMES = 256
MOST_SHAPES = 2000
"""Jobs in the shape of --json, which has hundreds of fields: more of them make more text than the daemon sends."""
_WIDEST_LINE, _LONGEST_DELIMITER, _MOST_SORTS, _MOST_SELECTORS = 8192, 64, 16, 512
"""Who wants more than this has it in a process of their own."""


_WIDE = re.compile("[0-9]{3}")


class CommandError(Exception):
    """The message is complete as it is printed; `code` is the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class SilentError(Exception):
    """A command failed, and all there is to say was said."""


class AnsweredError(Exception):
    """--version, --help or --usage was asked and printed: the command is done."""


def options_of(
    name: str, table: Sequence[Opt], argv: list[str], add_up: Container[str] = ()
) -> tuple[dict[str, str | None], list[str]]:
    """The options given, the last of each (those in `add_up` together, as a list), and the other words."""
    given, words = read(table, argv)
    asked: dict[str, str | None] = {}
    for option, value in given:
        if option == "version":
            say(VERSION_LINE)
            raise AnsweredError
        if option in ("help", "usage"):
            print_help(name, table, option)
            raise AnsweredError
        earlier = asked.pop(option, None)  # popped: the order of `asked` is that of the last mentions
        asked[option] = f"{earlier},{value}" if earlier and option in add_up else value
    return asked, words


def refuse_format_with_long(command: str, asked: Mapping[str, str | None]) -> None:
    if "format" in asked and "long" in asked:
        clash = "Options -o(--format) and -l(--long) are mutually exclusive. Please remove one and retry."
        raise CommandError(f"{command}: fatal: {clash}")


def keep_latest(asked: dict[str, str | None], *rivals: str) -> None:
    """Of options that exclude each other, the one given last."""
    for earlier in [option for option in asked if option in rivals][:-1]:
        del asked[earlier]


def print_help(name: str, table: Sequence[Opt], option: str) -> None:
    say(usage_text(name, table) if option == "usage" else help_text(name, table))


_MAY_BE_SLURMS = frozenset({"sacctmgr", "scontrol", "sinfo", "sprio", "sshare"})
"""Commands of which a Slurm cluster answers some or all itself."""


def guarded(name: str, body: Callable[[], int], *, pointer: bool = True) -> int:
    """Runs a command's body and turns what it raises into Slurm's words and exit codes.

    `pointer`: whether getopt's refusals are followed by the pointer to --help.
    """
    around().command = name
    try:
        code = body()
        around().flush()
        return code
    except AnsweredError:
        return 0
    except OptionLineError as error:
        tell(f"{name}: {error}")
        if pointer:
            tell(f'Try "{name} --help" for more information')
        return 1
    except SlurmSyntaxError as error:
        for line in str(error).splitlines():
            tell(f"{name}: error: {line}")
        return 1
    except SilentError:
        return 1
    except CommandError as error:
        tell(str(error))
        return error.code
    except BrokenPipeError:
        around().abandon_output()
        return 0
    except KeyboardInterrupt:
        return 130


def tell(message: str) -> None:
    around().tell(message)


def say(text: object = "", end: str = "\n") -> None:
    around().write(f"{text}{end}")


def write(text: str) -> None:
    around().write(text)


def show(lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if text:
        around().write(text + "\n")


def show_table(plan: Plan, records: Sequence[Any], context: Context, *, header: bool) -> None:
    """The header, if wanted, and a line of each record, some at a time."""
    titles = plan.header()
    around().keep_small(len(titles), _WIDEST_LINE)
    if header:
        show([titles])
    for begin in range(0, len(records), _LINES_AT_ONCE):
        show(plan.lines(records[begin : begin + _LINES_AT_ONCE], context, _measure))


def show_columns(
    columns: Sequence[AccountingColumn],
    rows: Sequence[Any],
    context: Context,
    *,
    header: bool,
    parsable: Parsable | None,
) -> None:
    """A line of each row, some at a time: in columns, or with a delimiter between the fields."""
    around().keep_small(sum(column.width for column in columns), _WIDEST_LINE)
    for begin in range(0, max(len(rows), 1), _LINES_AT_ONCE):
        some, first = rows[begin : begin + _LINES_AT_ONCE], header and begin == 0
        if parsable is None:
            show(fixed_lines(columns, some, context, header=first))
        else:
            around().keep_small(len(parsable.delimiter), _LONGEST_DELIMITER)
            show(parsable_lines(columns, some, context, header=first, measure=_measure, **parsable._asdict()))


def _measure(letters: int) -> None:
    around().keep_small(letters, _LONGEST_LINE)


class Parsable(NamedTuple):
    delimiter: str = "|"
    ending: bool = False
    """Whether one stands behind the last field too."""


def keep_bounds(sort: Sequence[Any], selectors: Sequence[Any] = ()) -> None:
    """What is done for each record, or with all of them: not too often where others wait."""
    around().keep_small(len(sort), _MOST_SORTS)
    around().keep_small(len(selectors), _MOST_SELECTORS)


def keep_few_shapes(jobs: Sequence[Any]) -> None:
    around().keep_small(len(jobs), MOST_SHAPES)


def environment() -> Mapping[str, str]:
    return around().environment


def my_uid() -> int:
    return around().uid


def make_context(*, convert: bool = True, unit: str = "", cluster: str = "", now: float | None = None) -> Context:
    """The context of this process: its clock, its time zone, its SLURM_TIME_FORMAT."""
    at = time.time() if now is None else now
    limit = environment().get("SLURM_BITSTR_LEN", "")
    return Context(
        now=at,
        stamp=make_stamp(_time_format(), at),
        convert=convert,
        unit=unit,
        bitstr_len=int(limit) if limit.isascii() and limit.isdecimal() and len(limit) < 10 else 64,
        cluster=cluster,
    )


def _time_format() -> str:
    """Of SLURM_TIME_FORMAT. A conversion may have a width (`%3000000d`), and each of them is text for every time."""
    form = environment().get("SLURM_TIME_FORMAT", "")
    around().keep_small(len(form), _LONGEST_TIME_FORMAT)
    if _WIDE.search(form):
        around().only_near()
    return form


def make_stamp(form: str, now: float) -> Callable[[float], str]:
    """Epoch seconds to local time text. Many jobs share a second, so answers are kept."""
    known: dict[int, str] = {}

    def stamp(at: float) -> str:
        second = int(at)
        text = known.get(second)
        if text is None:
            if len(known) >= _MOST_STAMPS:
                known.clear()
            text = known[second] = _stamp(form, second, now)
        return text

    return stamp


def _stamp(form: str, second: int, now: float) -> str:
    local = time.localtime(second)
    if form == "relative":
        return _relative(local, second, now)
    if form and form != "standard":
        return time.strftime(form, local)
    return time.strftime("%Y-%m-%dT%H:%M:%S", local)


def _relative(local: time.struct_time, second: int, now: float) -> str:
    """SLURM_TIME_FORMAT=relative: `12:34:56` today, `Tomorr 12:34`, `Mon 12:34`, `25 Apr 12:34`, `6 Jun 2012`."""
    today = time.localtime(now)
    midnight = time.mktime((*today[:3], 0, 0, 0, 0, 0, -1))
    days = int((second - midnight) // DAY_S)
    if days == 0:
        return time.strftime("%H:%M:%S", local)
    clock = time.strftime("%H:%M", local)
    if days == 1:
        return f"Tomorr {clock}"
    if days == -1:
        return f"Ystday {clock}"
    if 1 < days < 7:
        return f"{time.strftime('%a', local)} {clock}"
    if local.tm_year == today.tm_year:
        return f"{local.tm_mday} {time.strftime('%b', local)} {clock}"
    return f"{local.tm_mday} {time.strftime('%b %Y', local)}"


def date_line() -> str:
    """The line above long and repeated listings: `Sun Nov 15 05:18:17 2026`."""
    return time.ctime()


def repeat(seconds: int, body: Callable[[], int]) -> int:
    """--iterate: again and again, a blank line in between, until interrupted."""
    if seconds:
        around().only_near()
    while True:
        code = body()
        if not seconds:
            return code
        write("\n")
        around().flush()
        time.sleep(seconds)


def each_cluster(command: str, text: str | None, body: Callable[[str], int], *, header: bool) -> int:
    """-M: the listing of each cluster that is named, under its name; without it, one listing of everything."""
    names = clusters_named(command, text)
    if not names:
        return body("")
    code = 0
    for place, name in enumerate(names):
        if header:
            show([*([""] if place else []), f"CLUSTER: {name}"])
        code = max(code, body(name))
    return code


def clusters_named(command: str, text: str | None) -> list[str]:
    """Clusters that -M names, or else SLURM_CLUSTERS; the command ends where none is called so. None: neither names
    any."""
    by_variable = text is None
    text = environment().get(VARIABLE) or None if by_variable else text
    if text is None:
        return []
    try:
        return chosen_clusters(transport(), text, VARIABLE if by_variable else "--cluster")
    except UnknownClusterError as error:
        raise CommandError(error.said_by(command)) from None
    except (ApiError, BiremeUnavailable) as error:
        raise failure(command, f"{command}: error: Problem talking to the database", error) from None


def positive_seconds(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise SlurmSyntaxError(f"--{name}={text}")
    return int(text)


def user_ids(command: str, text: str) -> set[int]:
    """Uids of a comma list of names or numbers. A name nobody has is said and selects nothing, as in Slurm."""
    words = words_of(text)
    found: dict[str, int | None] = dict.fromkeys(words)
    around().keep_small(len(found), MOST_NAMES)
    for name in found:
        number = name.isascii() and name.isdecimal() and len(name) < 12
        found[name] = int(name) if number else around().user_id(name)
    for word in words:
        if found[word] is None:
            tell(f"{command}: error: Invalid user: {word}")
    return {uid for uid in found.values() if uid is not None}


def transport() -> Port:
    """Whom the command asks."""
    return around().port(may_be_slurms=around().command in _MAY_BE_SLURMS)


def failure(command: str, what: str, error: Exception) -> CommandError:
    """How a command tells that the daemon refused (`ApiError`) or does not answer (`BiremeUnavailable`)."""
    message, hint = getattr(error, "message", str(error)), getattr(error, "hint", "")
    return CommandError(f"{what}: {message}" + (f"\n{command}: {hint}" if hint else ""))


def words_of(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]


def each_task(jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The jobs, with a record for each waiting task of an array: --array of squeue and sacct."""
    spread: list[dict[str, Any]] = []
    for job in jobs:
        tasks = expand_tasks(job["array_tasks"]) if job.get("array_tasks") else [None]
        around().keep_small(len(spread) + len(tasks), _MOST_TASKS)
        spread += [job if task is None else {**job, "array_task_id": task, "array_tasks": ""} for task in tasks]
    return spread
