"""`healing.toml`: which jobs are started again after a failure, as operators write it, read into values.

Read at the start and at every reconfiguration; where there is no such file, the default rule is for all jobs. Each
table is a rule, by its name; the first that is for a job counts:

    [train]
    partitions = ["gpu"]
    restart = "asked"
    most = 5
    within = "1-00:00:00"
    backoff = "00:00:10"
    lost_gpu_hours = 500

Invariant: a file with a mistake is not used in part.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bireme.core.model.healing.restarts import RestartRule, Which
from bireme.daemon.files import read_file
from bireme.daemon.settings import Settings, SettingsError
from bireme.slurm.times import parse_time_limit

FILE_NAME = "healing.toml"
_MOST_BYTES, _MOST_RULES, _MOST_RESTARTS, _MOST_S = 1 << 20, 1000, 1000, 365 * 86_400
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class _WrongValueError(ValueError):
    """What is allowed instead."""


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise _WrongValueError('a list of names, as ["a", "b"]')
    return tuple(value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _WrongValueError('the name of a reservation, as "spares"')
    return value


def _which(value: Any) -> Which:
    if value not in list(Which):
        raise _WrongValueError("one of " + ", ".join(Which))
    return Which(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_RESTARTS:
        raise _WrongValueError(f"a whole number from 0 to {_MOST_RESTARTS}")
    return value


def _hours(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise _WrongValueError("a number of GPU-hours above 0")
    return float(value)


def _time(value: Any) -> int:
    try:
        seconds = parse_time_limit(value) if isinstance(value, str) else None
    except ValueError:
        seconds = None
    if not isinstance(seconds, int) or not 0 <= seconds <= _MOST_S:
        raise _WrongValueError('a time as --time takes it, as "00:10:00", up to a year')
    return seconds


KEYS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "partitions": ("partitions", _names),
    "qos": ("qos", _names),
    "restart": ("which", _which),
    "most": ("most", _count),
    "within": ("within_s", _time),
    "lost_gpu_hours": ("lost_gpu_hours", _hours),
    "backoff": ("backoff_s", _time),
    "backoff_most": ("backoff_most_s", _time),
    "unexplained": ("unexplained", _count),
    "spares": ("spares", _name),
}
"""Keys of a rule: the field of `RestartRule` that each is, and how it is read."""


def load_rules(settings: Settings, home: str, partitions: Collection[str] | None) -> tuple[RestartRule, ...]:
    """The rules that the settings name. `partitions`: those that there are; None: nobody knows them yet.

    Raises SettingsError.
    """
    path = settings.site_path(settings.healing_rules, home, FILE_NAME)
    if not settings.healing_rules and not os.path.exists(path):
        return ()
    rules = tuple(_rule(path, name, table) for name, table in _read(path).items())
    for rule in rules:
        for partition in rule.partitions:
            if partitions is not None and partition not in partitions:
                raise SettingsError(f"{path}: [{rule.name}]: {_near('partition', partition, sorted(partitions))}")
    return rules


def _read(path: str) -> dict[str, Any]:
    try:
        text = read_file(path, _MOST_BYTES)
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise SettingsError(f"{path} is larger than 1 MiB: these are no rules")
    try:
        document = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    if len(document) > _MOST_RULES:
        raise SettingsError(f"{path}: there are at most {_MOST_RULES} rules, each a table: [train]")
    return document


def _rule(path: str, name: str, table: Any) -> RestartRule:
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {name} stands outside of a rule: each rule is a table, as [train]")
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{path}: [{name[:80]}]: a rule's name has letters, digits, '_', '.' and '-'")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in KEYS:
            raise SettingsError(f"{path}: [{name}]: {_near('key', key, list(KEYS))}")
        field, read = KEYS[key]
        try:
            values[field] = read(value)
        except _WrongValueError as error:
            said = f"{value!r}"[:80]
            raise SettingsError(f"{path}: [{name}]: {key} = {said} is not possible: it must be {error}") from error
    return RestartRule(name=name, **values)


def _near(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name[:64], known, 1)
    more = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    return f"there is no {what} {name[:80]!r}; {more}"
