"""The settings `healing.*` as a policy: how far Bireme goes by itself, and what the engine can keep free.

Read at the start and at every reconfiguration. Invariant: a setting with a mistake is not used in part.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from urllib.parse import urlsplit

from bireme.core.model.healing.policy import HealingMode, HealingPolicy
from bireme.daemon.rules.tables import not_there
from bireme.daemon.settings import Settings, SettingsError

_AUTO = "auto"
_MODES = {mode.value: mode for mode in HealingMode}


def healing_policy(settings: Settings, partitions: Collection[str] | None) -> HealingPolicy:
    """`partitions`: those that there are; None: nobody knows them yet. Raises SettingsError."""
    percent = settings.healing_breaker
    if not 0 <= percent <= 100:
        raise SettingsError(f"healing.breaker = {percent}: it must be a percentage, 0 to 100")
    _check_webhook(settings.healing_webhook)
    for name, program in (("healing.hook", settings.healing_hook), ("healing.repair", settings.healing_repair)):
        _check_program(name, program)
    host = settings.engine.split("+")[0]
    whole = {"kubernetes": ("",), "slurm": ("",)}.get(host, ())
    return HealingPolicy(
        mode=_mode(settings, host),
        partitions=_modes(settings.healing_partitions, partitions),
        breaker_percent=float(percent),
        whole_nodes=whole,
        ordered=("",) if host == "slurm" else (),
        guests_ordered=settings.has_guest,
    )


def _mode(settings: Settings, host: str) -> HealingMode:
    """On nodes that Bireme looks after it acts: what it does there is bounded, audited and taken back with a word. A
    cluster of others is theirs: it is only looked at unless somebody says otherwise."""
    if settings.healing_mode != _AUTO:
        return _MODES[settings.healing_mode]
    return HealingMode.ACT if settings.engine == "embedded" else HealingMode.OBSERVE


def _modes(text: str, known: Collection[str] | None) -> tuple[tuple[str, HealingMode], ...]:
    found: dict[str, HealingMode] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, word = (each.strip() for each in part.partition("="))
        if not equals or word not in _MODES or not name:
            allowed = ", ".join(_MODES)
            raise SettingsError(f"healing.partitions: {part[:80]!r}: write PARTITION=MODE, the mode one of {allowed}")
        if known is not None and name not in known:
            raise SettingsError(f"healing.partitions: {not_there('partition', name, sorted(known))}")
        if name in found:
            raise SettingsError(f"healing.partitions: {name} is said twice")
        found[name] = _MODES[word]
    return tuple(found.items())


def _check_program(name: str, program: str) -> None:
    if not program or program.startswith(("http://", "https://")):
        return
    if not program.startswith("/"):
        raise SettingsError(f"{name}: {program[:80]!r}: it must be the full path of a program")
    if not os.path.isfile(program) or not os.access(program, os.X_OK):
        raise SettingsError(f"{name}: {program[:80]} is no program that can be run: look at its path and mode")


def _check_webhook(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = not url or (parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        sound = False
    if not sound:
        raise SettingsError("healing.webhook: it must be an address as https://HOST/PATH")
