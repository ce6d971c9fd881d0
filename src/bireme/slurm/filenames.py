"""Filename patterns of `--output`, `--error` and `--input`: `logs/%x-%j.out`, `step-%J-%4t.log`.

Text in, text out: no path is made absolute and nothing is opened. Called by the agent, srun and the reports with
the values they know. Invariant: a pattern without `%` and `\\` comes back unchanged.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

DEFAULT_OUTPUT = "slurm-%j.out"
DEFAULT_ARRAY_OUTPUT = "slurm-%A_%a.out"

NO_TASK = 4294967294
"""What Slurm writes for %a in a job that is no array: its 'no value'."""

_MAX_WIDTH = 10
_SPECIFIER = re.compile(r"%(?P<width>[0-9]*)(?P<letter>[%AaJjNnstuxb])")
_UNKNOWN_WITH_WIDTH = re.compile(r"%(?=[0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilenameValues:
    """What the specifiers stand for. The defaults are those of a batch script."""

    job_id: int
    array_job_id: int | None = None
    array_task_id: int | None = None
    step: int | str = "batch"
    """A step's number, or the name of a special step such as `batch`."""
    node: str = ""
    """Short host name."""
    node_index: int = 0
    task_index: int = 0
    user: str = ""
    job_name: str = ""


def default_output(is_array: bool) -> str:
    """The pattern where `--output` is not given."""
    return DEFAULT_ARRAY_OUTPUT if is_array else DEFAULT_OUTPUT


def expand_filename(pattern: str, values: FilenameValues) -> str:
    """The file name. A backslash anywhere switches the specifiers off and stands for the character after it."""
    if "\\" in pattern:
        return re.sub(r"\\(.?)", r"\1", pattern, flags=re.DOTALL)
    if "%" not in pattern:
        return pattern
    before, last = _pieces(pattern)
    return "".join([f"{plain}{_value(letter, padding, values)}" for plain, letter, padding in before]) + last


@lru_cache(maxsize=256)
def _pieces(pattern: str) -> tuple[tuple[tuple[str, str, int], ...], str]:
    """((text before it, letter, padding) of every specifier, the text after the last): jobs share a few patterns."""
    found, text, end = [], "", 0
    for match in _SPECIFIER.finditer(pattern):
        text += _plain(pattern[end : match.start()])
        end = match.end()
        if match["letter"] == "%":
            text += f"{match['width']}%"
        else:
            found.append((text, match["letter"], min(int(match["width"][-4:] or 0), _MAX_WIDTH)))
            text = ""
    return tuple(found), text + _plain(pattern[end:])


def specifiers(pattern: str) -> frozenset[str]:
    """The letters a pattern uses: `{"j", "t"}`. With t, n or N, srun's files are written where the tasks run."""
    if "\\" in pattern:
        return frozenset()
    return frozenset(match["letter"] for match in _SPECIFIER.finditer(pattern)) - {"%"}


def _plain(text: str) -> str:
    """Slurm drops the `%` of `%4z`, where a width is followed by no specifier, and keeps that of `%z`."""
    return _UNKNOWN_WITH_WIDTH.sub("", text)


def _value(letter: str, padding: int, values: FilenameValues) -> str:
    value = _MEANINGS[letter](values)
    shown = value if isinstance(value, str) else f"{value:0{padding}d}" if padding else str(value)
    return f"{shown}.{values.step}" if letter == "J" and isinstance(values.step, int) else shown


def _task(values: FilenameValues) -> int:
    return NO_TASK if values.array_task_id is None else values.array_task_id


_MEANINGS: dict[str, Callable[[FilenameValues], int | str]] = {
    "A": lambda values: values.job_id if values.array_job_id is None else values.array_job_id,
    "a": _task,
    "b": lambda values: _task(values) % 10,
    "J": lambda values: values.job_id,
    "j": lambda values: values.job_id,
    "N": lambda values: values.node,
    "n": lambda values: values.node_index,
    "s": lambda values: values.step,
    "t": lambda values: values.task_index,
    "u": lambda values: values.user,
    "x": lambda values: values.job_name,
}
