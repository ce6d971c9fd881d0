"""`--export`: which variables of the caller's environment a job or step gets.

A pure function of the caller's environment and the option's text. The SLURM_ variables always go along; what the
cluster itself sets comes on top, later and elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_PARTS = re.compile(r"""(?:[^,'"]|'[^']*'|"[^"]*"|['"])+""")
_ALWAYS = ("SLURM_", "SPANK_", "BIREME_")


@dataclass(frozen=True, slots=True)
class Exported:
    """The environment that goes along, and whether the login environment is to be loaded beneath it."""

    environment: dict[str, str]
    load_login_environment: bool


def exported(environment: Mapping[str, str], export: str | None, *, get_user_env: bool = False) -> Exported:
    """What `--export` lets through; `export` None means the option was not given, which is ALL."""
    words = [] if export is None else _PARTS.findall(export)
    keyword = export.upper() if export is not None else "ALL"
    if keyword == "ALL":
        return Exported(dict(environment), get_user_env)
    chosen = {name: value for name, value in environment.items() if name.startswith(_ALWAYS)}
    if keyword == "NIL":
        return Exported(chosen, False)
    if keyword == "NONE" or not words:
        return Exported(chosen, True)
    takes_all = any(word.upper() == "ALL" for word in words)
    named = _named(environment, (word for word in words if word.upper() != "ALL"))
    if takes_all:
        return Exported({**environment, **named}, get_user_env)
    return Exported({**chosen, **named}, True)


def _named(environment: Mapping[str, str], words: Iterable[str]) -> dict[str, str]:
    """`NAME=VALUE` sets, `NAME` passes on. Quotes keep commas together and stay in the value, as in Slurm."""
    named: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name:
            named[name] = value
        elif name in environment:
            named[name] = environment[name]
    return named


def parse_export_file(data: bytes) -> dict[str, str]:
    """The variables of an `--export-file`: NAME=VALUE, with a NUL after each."""
    variables: dict[str, str] = {}
    for entry in data.decode("utf-8", "surrogateescape").split("\0"):
        name, equals, value = entry.partition("=")
        if equals and name:
            variables[name] = value
    return variables
