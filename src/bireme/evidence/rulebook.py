"""The rules of `rules/*.toml` and of a site's own folder, read into a `Rulebook`, with every mistake named.

One file a family. A file has tables `[[cause]]` and `[[rule]]`; a site's file may use any cause of the published list,
add causes of its own, and replace a rule of ours by its id. Ours are read by the same code; a mistake in them is a bug.
Invariant: a site's file with a mistake is left out whole, and said; the rest goes on.
"""

from __future__ import annotations

import os
import re
import string
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from bireme.core.diagnosis.matching import Rulebook, plain
from bireme.core.diagnosis.model import SIGNS, UNKNOWN, Cause, Confidence, Role, Rule, Source, Who
from bireme.evidence.patterns import is_slow

MOST_BYTES = 1 << 20
MOST_RULES = 1_000
"""Of a site, in all."""
_MOST_PATTERN = 1_000
_ID = re.compile(r"[a-z0-9_-]{1,64}")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "who": get_args(Who),
    "role": get_args(Role),
    "sources": get_args(Source),
    "sure": get_args(Confidence),
}


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


@dataclass(frozen=True)
class _File:
    """What one file of rules holds, checked for itself."""

    causes: Mapping[str, Cause]
    rules: Mapping[str, Rule]


def load(site: Path | None = None) -> Loaded:
    """Ours, and those of `site`, a folder that need not be there."""
    ours = _ours()
    loaded = Loaded(dict(ours.causes), dict(ours.rules))
    spare = MOST_RULES
    for path in _files_of(site, loaded.problems) if site is not None else ():
        try:
            file = _site_file(path, loaded, spare)
        except (OSError, RuleError) as error:
            loaded.problems.append(f"{path} is not used: {error}")
            continue
        spare -= len(file.rules)
        loaded.causes |= file.causes
        loaded.rules |= file.rules
    return loaded


def problems_of(paths: Iterable[Path]) -> list[str]:
    """What is wrong with a site's files, for who checks them before they are used."""
    found = []
    for path in paths:
        try:
            _site_file(path, _ours(), MOST_RULES)
        except (OSError, RuleError) as error:
            found.append(f"{path}: {error}")
    return found


@cache
def _ours() -> Loaded:
    """Read and checked once: they do not change while a process lives, and a daemon is asked often."""
    loaded = Loaded()
    for file in sorted(resources.files("bireme.evidence.rules").iterdir(), key=lambda each: each.name):
        if file.name.endswith(".toml"):
            read = _read(file.read_text("utf-8"), file.name.removesuffix(".toml"))
            for twice in (*(read.causes.keys() & loaded.causes.keys()), *(read.rules.keys() & loaded.rules.keys())):
                raise RuleError(f"{file.name}: {twice} is also in another file")
            loaded.causes |= read.causes
            loaded.rules |= read.rules
    _check_references(loaded.rules.values(), loaded.causes.values(), loaded.causes.keys())
    return loaded


def _files_of(site: Path, problems: list[str]) -> list[Path]:
    try:
        return sorted(path for path in site.iterdir() if path.suffix == ".toml")
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{site} is not used: {error}")
        return []


def _site_file(path: Path, loaded: Loaded, most_rules: int) -> _File:
    file = _read(_text_of(path), path.stem)
    if len(file.rules) > most_rules:
        raise RuleError(f"a site has at most {MOST_RULES} rules in all")
    if UNKNOWN in file.causes:
        raise RuleError(f"the cause {UNKNOWN} is not a site's to change")
    _check_references(file.rules.values(), file.causes.values(), loaded.causes.keys() | file.causes.keys())
    for rule in file.rules.values():
        if is_slow(re.compile(rule.pattern), rule.examples):
            raise RuleError(
                f"rule {rule.id}: its pattern takes long on some lines; repeat nothing that repeats itself, as in "
                "(a+)+, and bound what may be anything: .{0,80} instead of .*"
            )
    return file


def _text_of(path: Path) -> str:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        data = file.read(MOST_BYTES + 1) or b""
    if len(data) > MOST_BYTES:
        raise RuleError(f"it is longer than {MOST_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RuleError(f"it is not UTF-8: {error}") from error


def _read(text: str, family: str) -> _File:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RuleError(str(error)) from error
    except RecursionError:
        raise RuleError("its tables or lists are nested too deeply") from None
    for name, value in tables.items():
        if name not in ("cause", "rule") or not isinstance(value, list):
            raise RuleError(f"{name} is no table of a file of rules: [[cause]], [[rule]]")
    causes = [cause_of(table, family) for table in tables.get("cause", ())]
    rules = [rule_of(table) for table in tables.get("rule", ())]
    for kind, ids in (("cause", [each.id for each in causes]), ("rule", [each.id for each in rules])):
        for twice in {each for each in ids if ids.count(each) > 1}:
            raise RuleError(f"{kind} {twice} is there twice")
    return _File({cause.id: cause for cause in causes}, {rule.id: rule for rule in rules})


def _check_references(rules: Iterable[Rule], causes: Iterable[Cause], known: Iterable[str]) -> None:
    there = set(known)
    for rule in rules:
        if rule.role not in SIGNS and rule.cause not in there:
            raise RuleError(f"rule {rule.id}: there is no cause {rule.cause}")
    for cause in causes:
        for effect in cause.leads_to:
            if effect not in there:
                raise RuleError(f"cause {cause.id}: leads_to names {effect}, which is no cause")


def cause_of(table: Mapping[str, Any], family: str) -> Cause:
    return Cause(**_values(table, "cause", Cause, given={"family": family}))


def rule_of(table: Mapping[str, Any]) -> Rule:
    rule = Rule(**_values(table, "rule", Rule, given={}))
    where = f"rule {rule.id}"
    if rule.role not in SIGNS and not rule.cause:
        raise RuleError(f"{where}: cause is missing")
    if not rule.words or any(word != word.lower() or len(word) < 2 for word in rule.words):
        raise RuleError(f"{where}: words are in lower case, of two letters or more, and at least one")
    if len(rule.pattern) > _MOST_PATTERN:
        raise RuleError(f"{where}: a pattern has at most {_MOST_PATTERN} characters")
    try:
        pattern = re.compile(rule.pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise RuleError(f"{where}: {error}") from error
    _check_meaning(rule, set(pattern.groupindex), where)
    _check_examples(rule, pattern, where)
    return rule


def _check_meaning(rule: Rule, groups: set[str], where: str) -> None:
    try:
        parts = list(string.Formatter().parse(rule.meaning))
    except ValueError as error:
        raise RuleError(f"{where}: meaning: {error}") from error
    for _, name, layout, conversion in parts:
        if name is not None and (name not in groups or layout or conversion):
            raise RuleError(f"{where}: meaning may have {{NAME}} for a named group of the pattern, and nothing else")


def _check_examples(rule: Rule, pattern: re.Pattern[str], where: str) -> None:
    if not rule.examples:
        raise RuleError(f"{where}: examples has at least one line that it knows")
    for text in rule.examples:
        seen = plain(text)
        if pattern.search(seen) is None or not any(word in seen.lower() for word in rule.words):
            raise RuleError(f"{where}: its pattern and words do not know its example {text!r}")
    for text in rule.counterexamples:
        if pattern.search(plain(text)) is not None:
            raise RuleError(f"{where}: its pattern knows its counterexample {text!r}")


def _values(table: Mapping[str, Any], kind: str, shape: type, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(table, Mapping) or not _ID.fullmatch(str(table.get("id", ""))):
        raise RuleError(f"each {kind} has an id of small letters, digits, - and _")
    named = {each.name: each for each in fields(shape) if each.name not in given}
    values: dict[str, Any] = dict(given)
    for name, value in table.items():
        where = f"{kind} {table['id']}: {name}"
        if name not in named:
            raise RuleError(f"{kind} {table['id']}: there is no {name}; there are {', '.join(named)}")
        values[name] = _typed(value, str(named[name].type), where)
        chosen = value if isinstance(value, list) else [value]
        if name in _CHOICES and not set(chosen) <= set(_CHOICES[name]):
            raise RuleError(f"{where} is of {', '.join(_CHOICES[name])}")
    missing = {name for name, each in named.items() if each.default is MISSING} - values.keys()
    if missing:
        raise RuleError(f"{kind} {table['id']}: {', '.join(sorted(missing))} is missing")
    return values


def _typed(value: Any, wanted: str, where: str) -> Any:
    if wanted.startswith("tuple"):
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
