"""The rules of `rules/*.toml` and of a site's own folder, read into a `Rulebook`, with every mistake named.

One file a family. A file has tables `[[cause]]` and `[[rule]]`; a site's file may use any cause of the published list,
add causes of its own, and replace a rule of ours by its id. Ours are checked by the same code, in the tests.
Invariant: a site's file with a mistake is left out whole, and said; the rest goes on.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from bireme.core.diagnosis.matching import Rulebook, plain
from bireme.core.diagnosis.model import Cause, Role, Rule, Source, Who

MOST_BYTES = 1 << 20
MOST_RULES = 1_000
"""Of a site, in all."""
_MOST_PATTERN = 500
_ID = re.compile(r"[a-z0-9_-]{1,64}")


class RuleError(ValueError):
    """A file of rules cannot be used; the text says where and what is wanted."""


@dataclass
class Loaded:
    """Rules that were read, and what was left out."""

    causes: dict[str, Cause] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def book(self) -> Rulebook:
        return Rulebook(self.causes.values(), self.rules.values())


def load(site: Path | None = None) -> Loaded:
    """Ours, and those of `site`, a folder that need not be there."""
    loaded = Loaded()
    for file in sorted(resources.files("bireme.evidence.rules").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".toml"):
            _add(loaded, file.name, file.read_text("utf-8"))
    _check_causes(loaded)
    for path in sorted(site.glob("*.toml")) if site is not None else ():
        try:
            _add(loaded, str(path), _text_of(path))
            _check_causes(loaded)
        except (OSError, RuleError) as error:
            loaded.problems.append(f"{path} is not used: {error}")
    return loaded


def _text_of(path: Path) -> str:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise RuleError(f"it is longer than {MOST_BYTES} bytes")
    return data.decode("utf-8", "replace")


def _add(loaded: Loaded, name: str, text: str) -> None:
    """All of a file, or nothing."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RuleError(str(error)) from error
    unknown = sorted(set(tables) - {"cause", "rule"})
    if unknown:
        raise RuleError(f"{unknown[0]} is no table of a file of rules: [[cause]], [[rule]]")
    family = Path(name).stem
    causes = [cause_of(table, family) for table in tables.get("cause", ())]
    rules = [rule_of(table) for table in tables.get("rule", ())]
    known = loaded.causes.keys() | {cause.id for cause in causes}
    for rule in rules:
        if rule.cause not in known and "/" in name:
            raise RuleError(f"rule {rule.id}: there is no cause {rule.cause}")
    if len(rules) > MOST_RULES:
        raise RuleError(f"more than {MOST_RULES} rules")
    loaded.causes |= {cause.id: cause for cause in causes}
    loaded.rules |= {rule.id: rule for rule in rules}


def _check_causes(loaded: Loaded) -> None:
    for rule in loaded.rules.values():
        if rule.cause not in loaded.causes:
            raise RuleError(f"rule {rule.id}: there is no cause {rule.cause}")


def cause_of(table: Mapping[str, Any], family: str) -> Cause:
    values = _values(table, "cause", Cause, given={"family": family})
    if values["who"] not in get_args(Who):
        raise RuleError(f"cause {values['id']}: who is one of {', '.join(get_args(Who))}")
    return Cause(**values)


def rule_of(table: Mapping[str, Any]) -> Rule:
    values = _values(table, "rule", Rule, given={})
    where = f"rule {values['id']}"
    if values.get("role", "cause") not in get_args(Role):
        raise RuleError(f"{where}: role is one of {', '.join(get_args(Role))}")
    if not set(values.get("sources", ("output",))) <= set(get_args(Source)):
        raise RuleError(f"{where}: sources are of {', '.join(get_args(Source))}")
    if not values["words"] or any(word != word.lower() or len(word) < 2 for word in values["words"]):
        raise RuleError(f"{where}: words are in lower case, of two letters or more, and at least one")
    if len(values["pattern"]) > _MOST_PATTERN:
        raise RuleError(f"{where}: a pattern has at most {_MOST_PATTERN} characters")
    try:
        pattern = re.compile(values["pattern"])
    except re.error as error:
        raise RuleError(f"{where}: {error}") from error
    rule = Rule(**values)
    for text in rule.examples:
        seen = plain(text)
        if pattern.search(seen) is None or not any(word in seen.lower() for word in rule.words):
            raise RuleError(f"{where}: its pattern and words do not know its example {text!r}")
    for text in rule.counterexamples:
        if pattern.search(plain(text)) is not None:
            raise RuleError(f"{where}: its pattern knows its counterexample {text!r}")
    return rule


def _values(table: Mapping[str, Any], kind: str, shape: type, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(table, Mapping) or not _ID.fullmatch(str(table.get("id", ""))):
        raise RuleError(f"each {kind} has an id of small letters, digits, - and _")
    named = {each.name: each for each in fields(shape)}
    values: dict[str, Any] = dict(given)
    for name, value in table.items():
        if name not in named:
            raise RuleError(f"{kind} {table['id']}: there is no {name}; there are {', '.join(named)}")
        wanted = "tuple" if str(named[name].type).startswith("tuple") else str(named[name].type)
        values[name] = _typed(value, wanted, f"{kind} {table['id']}: {name}")
    missing = _required(shape) - values.keys()
    if missing:
        raise RuleError(f"{kind} {table['id']}: {', '.join(sorted(missing))} is missing")
    return values


def _required(shape: type) -> set[str]:
    return {"id", "cause", "pattern", "words"} if shape is Rule else {"id", "title", "who", "actions"}


def _typed(value: Any, wanted: str, where: str) -> Any:
    if wanted == "tuple":
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise RuleError(f"{where} is a list of texts")
        return tuple(value)
    if wanted == "bool":
        if not isinstance(value, bool):
            raise RuleError(f"{where} is true or false")
        return value
    if not isinstance(value, str):
        raise RuleError(f"{where} is a text")
    return value


def problems_of(paths: Iterable[Path]) -> list[str]:
    """What is wrong with a site's files, for who checks them before they are used."""
    found = []
    for path in paths:
        try:
            _add(load(), str(path), _text_of(path))
        except (OSError, RuleError) as error:
            found.append(f"{path}: {error}")
    return found
