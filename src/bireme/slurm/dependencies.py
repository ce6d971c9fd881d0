"""Dependencies: `afterok:12:13,afterany:14_3`, `after:5+10?singleton`, to the core's types and back.

Called by the options and the reports. Whether the jobs exist is not asked here. Invariant: no condition twice.

What Slurm does and this keeps: a bare job id means afterany; one `?` anywhere makes every condition an
alternative; a delay holds for the ids after it in the same list (`after:1+5:2` waits five minutes for both); `0`
means no dependency. `afterburstbuffer` is read as afterany, which it is where there are no burst buffers, and
`expand` is refused with the words Slurm has for it.
"""

import re
from collections.abc import Callable, Iterator

from bireme.core.model.jobs import Dependencies, Dependency, DependencyKind
from bireme.slurm.errors import SlurmSyntaxError

_KINDS = {kind.value: kind for kind in DependencyKind} | {"afterburstbuffer": DependencyKind.AFTER_ANY}
_TARGET = re.compile(
    r"(?P<job>[0-9]{1,10})(?:_(?:(?P<task>[0-9]{1,10})|\*|\[(?P<tasks>[0-9,-]+)\]))?(?:\+(?P<minutes>[0-9]{1,9}))?"
)
_CONDITION_END = re.compile(r"[,?](?![^\[]*\])")
_MAX_TASKS = 65536


def parse_dependencies(text: str) -> Dependencies:
    """The value of `--dependency`."""
    if text in ("", "0"):
        return Dependencies()
    items: dict[Dependency, None] = {}
    for condition in _CONDITION_END.split(text):
        items.update(dict.fromkeys(_parse_condition(condition, text)))
    return Dependencies(items=tuple(items), any_suffices="?" in text)


def format_dependencies(
    dependencies: Dependencies,
    *,
    is_array: Callable[[int], bool] = lambda job_id: False,
    state_of: Callable[[Dependency], str] = lambda dependency: "unfulfilled",
) -> str:
    """As squeue's %E: `afterok:12(unfulfilled),after:3_*+5(failed)`; empty when there is none.

    Slurm writes `_*` after the id of an array, which only the caller knows. Conditions already met are the
    caller's to leave out, as Slurm does.
    """
    separator = "?" if dependencies.any_suffices else ","
    return separator.join(f"{_condition_text(item, is_array)}({state_of(item)})" for item in dependencies.items)


def _condition_text(dependency: Dependency, is_array: Callable[[int], bool]) -> str:
    if dependency.kind is DependencyKind.SINGLETON:
        return dependency.kind.value
    task = f"_{dependency.task_id}" if dependency.task_id is not None else "_*" if is_array(dependency.job_id) else ""
    delay = f"+{dependency.delay_s // 60}" if dependency.delay_s else ""
    return f"{dependency.kind.value}:{dependency.job_id}{task}{delay}"


def _parse_condition(condition: str, whole: str) -> Iterator[Dependency]:
    word, colon, targets = condition.partition(":")
    if not colon and _TARGET.fullmatch(word):
        yield from _parse_targets(DependencyKind.AFTER_ANY, word, whole)
        return
    if word.lower() == "expand":
        raise SlurmSyntaxError("Requested operation not supported on this system: a job cannot expand another")
    kind = _KINDS.get(word.lower())
    if kind is None:
        raise _invalid(whole, f"'{word}' is not one of {', '.join(_KINDS)}")
    if kind is DependencyKind.SINGLETON:
        if colon:
            raise _invalid(whole, "singleton takes no job id")
        yield Dependency(kind)
        return
    yield from _parse_targets(kind, targets, whole)


def _parse_targets(kind: DependencyKind, targets: str, whole: str) -> Iterator[Dependency]:
    delay_s = 0
    for target in targets.split(":"):
        match = _TARGET.fullmatch(target.lstrip(" "))
        if match is None or int(match["job"]) == 0:
            raise _invalid(whole, f"'{target}' is not JOBID, JOBID_TASK or JOBID_*, with +MINUTES if need be")
        if match["minutes"] is not None:
            delay_s = int(match["minutes"]) * 60
            if delay_s == 0:
                raise _invalid(whole, "a delay is at least one minute")
        if match["tasks"] is None:
            yield Dependency(kind, int(match["job"]), int(match["task"]) if match["task"] else None, delay_s)
        else:
            for task_id in _parse_tasks(match["tasks"], whole):
                yield Dependency(kind, int(match["job"]), task_id, delay_s)


def _parse_tasks(text: str, whole: str) -> Iterator[int]:
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None or not 0 <= int(match[2] or match[1]) - int(match[1]) < _MAX_TASKS:
            raise _invalid(whole, f"'{part}' is not a task id or FIRST-LAST")
        yield from range(int(match[1]), int(match[2] or match[1]) + 1)


def _invalid(text: str, why: str) -> SlurmSyntaxError:
    return SlurmSyntaxError(f"Job dependency problem: {text} ({why})")
