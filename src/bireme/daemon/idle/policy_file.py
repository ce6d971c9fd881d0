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

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from bireme.core.model.idling.policy import IdleAction, IdleMode, IdlePolicy, IdleRule
from bireme.daemon.rules import tables
from bireme.daemon.rules.tables import Key, WrongValueError
from bireme.daemon.settings import Settings, SettingsError

FILE_NAME = "idle.toml"
_LEAST_IDLE_S, _MOST_S = 30, 30 * 86_400


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise WrongValueError("a name")
    return value


def _action(*actions: IdleAction) -> Callable[[Any], IdleAction]:
    check = tables.one_of(*actions)
    return lambda value: IdleAction(check(value))


def _time(least_s: int) -> Callable[[Any], int]:
    return tables.time_limit(f'"02:00:00", from {least_s} s to 30 days', least_s, _MOST_S)


KEYS: Mapping[str, Key] = {
    "partitions": Key("partitions", tables.names),
    "qos": Key("qos", tables.names),
    "accounts": Key("accounts", tables.names),
    "jobs": Key("jobs", tables.one_of("batch", "interactive")),
    "below_percent": Key("below_percent", tables.number("a number above 0, up to 100", 100)),
    "idle_time": Key("idle_s", _time(_LEAST_IDLE_S)),
    "gpus": Key("gpus", tables.one_of("all", "any")),
    "grace_time": Key("grace_s", _time(0)),
    "action": Key("action", _action(*IdleAction)),
    "otherwise": Key("otherwise", _action(IdleAction.NOTIFY, IdleAction.CANCEL)),
    "move_to": Key("move_to", _name),
    "exempt_comments": Key("exempt_comments", tables.names),
    "exempt_qos": Key("exempt_qos", tables.names),
    "exempt_accounts": Key("exempt_accounts", tables.names),
    "exempt_users": Key("exempt_users", tables.names),
}
"""The fields of `IdleRule`."""


def load_policy(settings: Settings, home: str, partitions: Collection[str] | None) -> IdlePolicy:
    """The policy that the settings name. `partitions`: those that there are; None: nobody knows them yet.

    Raises SettingsError.
    """
    mode = IdleMode(settings.idle_mode)
    if mode is IdleMode.OFF:
        return IdlePolicy()
    path = policy_path(settings, home)
    advice = 'write one (docs/idle.md), or say idle.mode = "off"'
    found = tables.read_tables(path, f"idle.mode is {settings.idle_mode}, and there is no {path}: {advice}")
    if not found:
        raise SettingsError(f"{path}: a policy has 1 to {tables.MOST_RULES} rules, each a table: [train]")
    rules = tuple(_rule(path, name, table) for name, table in found.items())
    for rule in rules:
        _check_partitions(path, rule, partitions)
    return IdlePolicy(mode, rules, os.path.basename(path))


def policy_path(settings: Settings, home: str) -> str:
    """`idle.policy`, else `idle.toml` in the home, else beside slurm.conf."""
    return settings.site_path(settings.idle_policy, home, FILE_NAME)


def _rule(path: str, name: str, table: Any) -> IdleRule:
    rule = IdleRule(name=name, **tables.read_fields(path, name, table, KEYS))
    if (rule.action is IdleAction.MOVE) is not bool(rule.move_to):
        raise SettingsError(f'{path}: [{name}]: action = "move" and move_to = "PARTITION" go together')
    if rule.jobs == "interactive" and rule.action in (IdleAction.REQUEUE, IdleAction.MOVE):
        raise SettingsError(f"{path}: [{name}]: interactive jobs cannot be requeued: say cancel or notify")
    return rule


def _check_partitions(path: str, rule: IdleRule, known: Collection[str] | None) -> None:
    tables.check_partitions(path, rule.name, (*rule.partitions, *filter(None, (rule.move_to,))), known)
    if known is not None and rule.move_to in rule.partitions:
        raise SettingsError(f"{path}: [{rule.name}]: move_to is one of the partitions that the rule is for")
