"""A TOML file of rules, read with every mistake named: each table is one rule, by its name, and each key has a reader.

What the rules say and where their file lies is their own room's (`idle/policy_file`, `faults/restarts/rules_file`).
Invariant: a file with a mistake is not used in part; what is said of one names the file, the rule, and what would do.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.daemon.files import read_file
from bireme.daemon.settings import SettingsError
from bireme.slurm.times import parse_time_limit

_MOST_BYTES = 1 << 20
MOST_RULES = 1000
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHOWN = 80
"""Letters of what somebody wrote: it may be anything."""


class WrongValueError(ValueError):
    """What is allowed instead."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a rule: the field that it is, and how its value is read. `read` raises WrongValueError."""

    field: str
    read: Callable[[Any], Any]


def read_tables(path: str, absent: str = "") -> dict[str, Any]:
    """The rules of a file as they stand there. `absent`: what to say where there is none. Raises SettingsError."""
    try:
        text = read_file(path, _MOST_BYTES)
    except OSError as error:
        is_absent = absent and isinstance(error, FileNotFoundError)
        raise SettingsError(absent if is_absent else f"cannot read {path}: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise SettingsError(f"{path} is larger than 1 MiB: these are no rules")
    try:
        document = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    if len(document) > MOST_RULES:
        raise SettingsError(f"{path}: there are at most {MOST_RULES} rules, each a table: [train]")
    return document


def read_fields(path: str, name: str, table: Any, keys: Mapping[str, Key]) -> dict[str, Any]:
    """The fields of one rule. Raises SettingsError."""
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {name} stands outside of a rule: each rule is a table, as [train]")
    if not NAME.fullmatch(name):
        raise SettingsError(f"{path}: [{name[:_SHOWN]}]: a rule's name has letters, digits, '_', '.' and '-'")
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in keys:
            raise SettingsError(f"{path}: [{name}]: {not_there('key', key, keys)}")
        try:
            fields[keys[key].field] = keys[key].read(value)
        except WrongValueError as error:
            said = f"{value!r}"[:_SHOWN]
            raise SettingsError(f"{path}: [{name}]: {key} = {said} is not possible: it must be {error}") from error
    return fields


def check_partitions(path: str, name: str, asked: Iterable[str], known: Collection[str] | None) -> None:
    """Whether the partitions are there that the rule of this name is about. `known`: None, nobody knows them yet.

    Raises SettingsError.
    """
    for partition in asked:
        if known is not None and partition not in known:
            raise SettingsError(f"{path}: [{name}]: {not_there('partition', partition, sorted(known))}")


def not_there(what: str, name: str, known: Collection[str]) -> str:
    """That there is no such thing, with the nearest that there is."""
    near = difflib.get_close_matches(name[:64], known, 1)
    more = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    return f"there is no {what} {name[:_SHOWN]!r}; {more}"


# --- readers ---------------------------------------------------------------------------------------------------------


def names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise WrongValueError('a list of names, as ["a", "b"]')
    return tuple(value)


def one_of(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise WrongValueError("one of " + ", ".join(words))
        return str(value)

    return read


def number(of: str, most: float) -> Callable[[Any], float]:
    """Above 0; `of` says what it counts."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise WrongValueError(of)
        return float(value)

    return read


def time_limit(allowed: str, least_s: int, most_s: int) -> Callable[[Any], int]:
    """In seconds; `allowed` says between what it lies."""

    def read(value: Any) -> int:
        try:
            seconds = parse_time_limit(value) if isinstance(value, str) else None
        except ValueError:
            seconds = None
        if not isinstance(seconds, int) or not least_s <= seconds <= most_s:
            raise WrongValueError(f"a time as --time takes it, as {allowed}")
        return seconds

    return read
