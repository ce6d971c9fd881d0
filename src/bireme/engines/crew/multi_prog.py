"""`srun --multi-prog`: the file that gives each task of a step its own program. Pure: text in, argument lists out.

A line is a list of task ids (`0-2,5`, or `*` for all that no line names), then a program and its arguments. `%t`
stands for the task's id, `%o` for its place within the line's list. Called by `payloads`.

Invariant: every task of the step gets exactly one program, or the file is refused with the line that is wrong.
"""

from __future__ import annotations

import shlex


class MultiProgError(ValueError):
    """The file does not say what every task is to run. `line`: which of its lines is to blame, if one is."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def programs(text: str, ntasks: int) -> list[tuple[str, ...]]:
    """The command of each task, by task id."""
    chosen: dict[int, tuple[str, ...]] = {}
    rest: tuple[str, list[str]] | None = None
    for number, line in enumerate(_logical_lines(text), 1):
        ranks, words = _split(line, number)
        if ranks == "*":
            rest = rest or (line, words)
            continue
        for offset, task in enumerate(_task_ids(ranks, number)):
            if task >= ntasks:
                raise MultiProgError(f"Invalid task id, {task} >= ntasks", number)
            chosen.setdefault(task, _filled_in(words, task, offset))
    if rest is not None:
        for offset, task in enumerate(task for task in range(ntasks) if task not in chosen):
            chosen[task] = _filled_in(rest[1], task, offset)
    missing = [task for task in range(ntasks) if task not in chosen]
    if missing:
        raise MultiProgError(f"Configuration file invalid, no record for task id {missing[0]}")
    return [chosen[task] for task in range(ntasks)]


def _logical_lines(text: str) -> list[str]:
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _split(line: str, number: int) -> tuple[str, list[str]]:
    ranks, _, command = line.partition(" ") if " " in line else line.partition("\t")
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise MultiProgError(f"Error in configuration file, line {number}: {error}") from error
    if not words:
        raise MultiProgError(f"Error in configuration file, line {number}: no program")
    return ranks, words


def _task_ids(ranks: str, number: int) -> list[int]:
    found: list[int] = []
    for part in ranks.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise MultiProgError(f"Invalid task id, {part!r}, in configuration file, line {number}")
        found += range(int(first), int(last if dash else first) + 1)
    return found


def _filled_in(words: list[str], task: int, offset: int) -> tuple[str, ...]:
    return tuple(word.replace("%t", str(task)).replace("%o", str(offset)) for word in words)
