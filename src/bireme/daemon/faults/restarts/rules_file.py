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

import os
from collections.abc import Collection, Mapping
from typing import Any

from bireme.core.model.healing.restarts import RestartRule, Which
from bireme.daemon.rules import tables
from bireme.daemon.rules.tables import Key, WrongValueError
from bireme.daemon.settings import Settings

FILE_NAME = "healing.toml"
_MOST_RESTARTS, _MOST_S = 1000, 365 * 86_400


def _name(value: Any) -> str:
    if not isinstance(value, str) or not tables.NAME.fullmatch(value):
        raise WrongValueError('the name of a reservation, as "spares"')
    return value


def _which(value: Any) -> Which:
    return Which(tables.one_of(*Which)(value))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_RESTARTS:
        raise WrongValueError(f"a whole number from 0 to {_MOST_RESTARTS}")
    return value


_time = tables.time_limit('"00:10:00", up to a year', 0, _MOST_S)

KEYS: Mapping[str, Key] = {
    "partitions": Key("partitions", tables.names),
    "qos": Key("qos", tables.names),
    "restart": Key("which", _which),
    "most": Key("most", _count),
    "within": Key("within_s", _time),
    "lost_gpu_hours": Key("lost_gpu_hours", tables.number("a number of GPU-hours above 0", 1e9)),
    "backoff": Key("backoff_s", _time),
    "backoff_most": Key("backoff_most_s", _time),
    "unexplained": Key("unexplained", _count),
    "spares": Key("spares", _name),
}
"""The fields of `RestartRule`."""


def load_rules(settings: Settings, home: str, partitions: Collection[str] | None) -> tuple[RestartRule, ...]:
    """The rules that the settings name. `partitions`: those that there are; None: nobody knows them yet.

    Raises SettingsError.
    """
    path = settings.site_path(settings.healing_rules, home, FILE_NAME)
    if not settings.healing_rules and not os.path.exists(path):
        return ()
    rules = tuple(
        RestartRule(name=name, **tables.read_fields(path, name, table, KEYS))
        for name, table in tables.read_tables(path).items()
    )
    for rule in rules:
        tables.check_partitions(path, rule.name, rule.partitions, partitions)
    return rules
