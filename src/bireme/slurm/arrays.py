"""Job arrays: `--array=0-31:2%4` to task ids, and task ids to the text that squeue and scontrol print.

Called by the options, the job variables and the reports. The type is the core's `ArraySpec`. Invariant: task ids
are ascending, distinct and below `max_size` (MaxArraySize, so with Slurm's default of 1001 the last is 1000).

Where Slurm shrugs at a throttle that is no number (`%x` means none to it), this is an error: nobody means that.
"""

import itertools
import re
from collections.abc import Sequence

from bireme.core.model.jobs import ArraySpec
from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.id_ranges import id_ranges

DEFAULT_MAX_ARRAY_SIZE = 1001
DEFAULT_TEXT_LENGTH = 64
"""SLURM_BITSTR_LEN where it is not set."""

_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")
_BRACKETS = re.compile(r"(?:^|(?<=,))\[([^\[\]]*)\](?=,|$)")
_THROTTLE = re.compile(r"%([0-9]{0,10})")


def parse_array(text: str, max_size: int = DEFAULT_MAX_ARRAY_SIZE) -> ArraySpec:
    """The value of `--array`. A throttle of 0 is none, as in Slurm; brackets around ranges are allowed."""
    ids_text, throttle = _split_throttle(text)
    task_ids: set[int] = set()
    for part in _BRACKETS.sub(r"\1", ids_text).split(","):
        if part.strip():
            task_ids.update(_parse_range(part.strip(), text, max_size))
    if not task_ids:
        raise _invalid(text, "no task ids; give for example 0-31, 1,3,5 or 0-30:2%4")
    return ArraySpec(task_ids=tuple(sorted(task_ids)), throttle=throttle, text=text)


def format_task_ids(task_ids: Sequence[int], max_length: int = DEFAULT_TEXT_LENGTH) -> str:
    """Ascending task ids as Slurm prints them: `1-2,6-8,11`, `0-30:2`, or cut off with `...`.

    `max_length` is SLURM_BITSTR_LEN; 0 means never cut.
    """
    step = _common_step(task_ids)
    if step is not None:
        return f"{task_ids[0]}-{task_ids[-1]}:{step}"
    return _cut(id_ranges(task_ids), max_length)


def format_array(task_ids: Sequence[int], throttle: int | None = None, max_length: int = DEFAULT_TEXT_LENGTH) -> str:
    """Task ids and throttle as squeue prints a waiting array: `0-30:2%4`."""
    return format_task_ids(task_ids, max_length) + (f"%{throttle}" if throttle else "")


def _split_throttle(text: str) -> tuple[str, int | None]:
    """Slurm takes the throttle from wherever it stands: `1-4%2,6` is `1-4,6%2`, and `[1-4%2]` is the same."""
    match = _THROTTLE.search(text)
    if match is None:
        if "%" in text:
            raise _invalid(text, "after % comes how many tasks may run at once")
        return text, None
    rest = text[: match.start()] + text[match.end() :]
    if "%" in rest or (rest[match.start() :] and rest[match.start()] not in ",]"):
        raise _invalid(text, "after % comes one number: how many tasks may run at once")
    return rest, int(match[1] or 0) or None


def _parse_range(part: str, whole: str, max_size: int) -> range:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise _invalid(whole, f"'{part}' is not N, FIRST-LAST or FIRST-LAST:STEP")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first:
        raise _invalid(whole, f"'{part}' ends before it begins")
    if match[3] is not None and step == 0:
        raise _invalid(whole, f"'{part}' has a step of 0")
    if last >= max_size:
        raise _invalid(whole, f"the largest task id here is {max_size - 1}: MaxArraySize is {max_size}")
    return range(first, last + 1, step)


def _common_step(task_ids: Sequence[int]) -> int | None:
    """The step where Slurm writes FIRST-LAST:STEP: over 1, for more than five tasks spread over more than ten ids."""
    if len(task_ids) <= 5 or task_ids[-1] - task_ids[0] <= 10:
        return None
    step = task_ids[1] - task_ids[0]
    if step == 1 or any(later - earlier != step for earlier, later in itertools.pairwise(task_ids)):
        return None
    return step


def _cut(text: str, max_length: int) -> str:
    """Slurm's buffer also holds a closing NUL and the comma it writes after every range."""
    if max_length <= 0 or len(text) + 2 < max_length:
        return text
    return (text[: max(0, max_length - 4)] + "...")[: max_length - 1]


def _invalid(text: str, why: str) -> SlurmSyntaxError:
    return SlurmSyntaxError(f"Invalid job array specification: {text} ({why})")
