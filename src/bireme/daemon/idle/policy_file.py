"""`idle.toml`: the policy for idle GPUs as operators write it, read into a value, with every mistake named.

Read at the start and at every reconfiguration. Each table is a rule, by its name; the first that is for a job counts:

    [train]
    partitions = ["gpu"]
    below_percent = 5
    idle_time = "02:00:00"
    grace_time = "00:30:00"
    action = "requeue"

Invariant: a file with a mistake is not used in part.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from bireme.core.model.idling.policy import IdleAction, IdleMode, IdlePolicy, IdleRule
from bireme.daemon.files import read_file
from bireme.daemon.settings import Settings, SettingsError
from bireme.slurm.times import parse_time_limit

FILE_NAME = "idle.toml"
_MOST_BYTES = 1024 * 1024
_MOST_RULES = 1000
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LEAST_IDLE_S, _MOST_S = 30, 30 * 86_400


class _WrongValueError(ValueError):
    """What is allowed instead."""


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a rule: the field of `IdleRule` that it is, and how it is read."""

    field: str
    read: Callable[[Any], Any]


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise _WrongValueError('a list of names, as ["a", "b"]')
    return tuple(value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _WrongValueError("a name")
    return value


def _percent(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 100:
        raise _WrongValueError("a number above 0, up to 100")
    return float(value)


def _one_of(*words: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in words:
            raise _WrongValueError("one of " + ", ".join(words))
        return value

    return read


def _action(*actions: IdleAction) -> Callable[[Any], Any]:
    check = _one_of(*actions)
    return lambda value: IdleAction(check(value))


def _time(least_s: int) -> Callable[[Any], int]:
    allowed = f'a time as --time takes it, as "02:00:00", from {least_s} s to 30 days'

    def read(value: Any) -> int:
        try:
            seconds = parse_time_limit(value) if isinstance(value, str) else None
        except ValueError:
            seconds = None
        if not isinstance(seconds, int) or not least_s <= seconds <= _MOST_S:
            raise _WrongValueError(allowed)
        return seconds

    return read


KEYS: Mapping[str, _Key] = {
    "partitions": _Key("partitions", _names),
    "qos": _Key("qos", _names),
    "accounts": _Key("accounts", _names),
    "jobs": _Key("jobs", _one_of("batch", "interactive")),
    "below_percent": _Key("below_percent", _percent),
    "idle_time": _Key("idle_s", _time(_LEAST_IDLE_S)),
    "gpus": _Key("gpus", _one_of("all", "any")),
    "grace_time": _Key("grace_s", _time(0)),
    "action": _Key("action", _action(*IdleAction)),
    "otherwise": _Key("otherwise", _action(IdleAction.NOTIFY, IdleAction.CANCEL)),
    "move_to": _Key("move_to", _name),
    "exempt_comments": _Key("exempt_comments", _names),
    "exempt_qos": _Key("exempt_qos", _names),
    "exempt_accounts": _Key("exempt_accounts", _names),
    "exempt_users": _Key("exempt_users", _names),
}


def load_policy(settings: Settings, home: str, partitions: Collection[str] | None) -> IdlePolicy:
    """The policy that the settings name. `partitions`: those that there are; None: nobody knows them yet.

    Raises SettingsError.
    """
    mode = IdleMode(settings.idle_mode)
    if mode is IdleMode.OFF:
        return IdlePolicy()
    path = policy_path(settings, home)
    document = _read(path, settings)
    rules = tuple(_rule(path, name, table) for name, table in document.items())
    for rule in rules:
        _check_partitions(path, rule, partitions)
    return IdlePolicy(mode, rules, os.path.basename(path))


def policy_path(settings: Settings, home: str) -> str:
    """`idle.policy`, else `idle.toml` in the home, else beside slurm.conf."""
    return settings.site_path(settings.idle_policy, home, FILE_NAME)


def _read(path: str, settings: Settings) -> dict[str, Any]:
    try:
        text = read_file(path, _MOST_BYTES)
    except FileNotFoundError as error:
        advice = 'write one (docs/idle.md), or say idle.mode = "off"'
        raise SettingsError(f"idle.mode is {settings.idle_mode}, and there is no {path}: {advice}") from error
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise SettingsError(f"{path} is larger than 1 MiB: that is no policy")
    try:
        document = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    if not document or len(document) > _MOST_RULES:
        raise SettingsError(f"{path}: a policy has 1 to {_MOST_RULES} rules, each a table: [train]")
    return document


def _rule(path: str, name: str, table: Any) -> IdleRule:
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {name} stands outside of a rule: each rule is a table, as [train]")
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{path}: [{name[:80]}]: a rule's name has letters, digits, '_', '.' and '-'")
    values = {KEYS[key].field: _value(path, name, key, value) for key, value in _known(path, name, table)}
    rule = IdleRule(name=name, **values)
    if (rule.action is IdleAction.MOVE) is not bool(rule.move_to):
        raise SettingsError(f'{path}: [{name}]: action = "move" and move_to = "PARTITION" go together')
    if rule.jobs == "interactive" and rule.action in (IdleAction.REQUEUE, IdleAction.MOVE):
        raise SettingsError(f"{path}: [{name}]: interactive jobs cannot be requeued: say cancel or notify")
    return rule


def _known(path: str, name: str, table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    for key in table:
        if key not in KEYS:
            near = difflib.get_close_matches(key[:64], list(KEYS), 1)
            more = f"did you mean {near[0]}?" if near else f"known are: {', '.join(KEYS)}"
            raise SettingsError(f"{path}: [{name}]: unknown key {key[:80]!r}; {more}")
    return list(table.items())


def _value(path: str, name: str, key: str, value: Any) -> Any:
    try:
        return KEYS[key].read(value)
    except _WrongValueError as error:
        said = f"{value!r}"[:80]
        raise SettingsError(f"{path}: [{name}]: {key} = {said} is not possible here: it must be {error}") from error


def _check_partitions(path: str, rule: IdleRule, known: Collection[str] | None) -> None:
    if known is None:
        return
    for partition in (*rule.partitions, *filter(None, (rule.move_to,))):
        if partition not in known:
            near = difflib.get_close_matches(partition[:64], sorted(known), 1)
            more = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(known))}"
            raise SettingsError(f"{path}: [{rule.name}]: there is no partition {partition[:80]!r}; {more}")
    if rule.move_to in rule.partitions:
        raise SettingsError(f"{path}: [{rule.name}]: move_to is one of the partitions that the rule is for")
