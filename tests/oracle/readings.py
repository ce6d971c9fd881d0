"""How what a case said becomes items: small named texts that are compared one by one.

Pure but for reading the files that the case left in its folder. Used by `run.py`.
Invariant: an item's name is the same on both systems when it means the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.oracle import normal
from tests.oracle.normal import Names
from tests.oracle.pair import Said

Items = dict[str, str]

_PASSING_LEAF = re.compile(
    r"\b(?:cpus\.load\.\w+|cpu_load|memory\.free\.\w+\.number|free_mem\.number|time\.elapsed|microseconds|planned\.number)$"
)
"""Values in a JSON document that are another at every look."""
_KEY = re.compile(r"(?:^|(?<=\s))([A-Za-z][\w/:.()-]*)=")


def lines(said: Said, names: Names) -> Items:
    """The exit code, every line of output and error, every file that was left."""
    items = {"exit code": str(said.code), **_numbered("out", names.text(said.out))}
    items.update(_numbered("err", names.text(said.err)))
    for path in left_files(said.folder):
        name = f"file {names.text(path.name)}"
        items.update(_numbered(name, names.text(path.read_text(errors="replace"))) or {name: "empty"})
    return items


def unordered(said: Said, names: Names) -> Items:
    """As `lines`, where several tasks write at once: the lines of each text are sorted."""
    texts: dict[str, list[str]] = {}
    items = lines(said, names)
    for name, text in items.items():
        texts.setdefault(re.sub(r" \d+$", "", name), []).append(text)
    return {
        f"{name} {place}" if name.startswith(("out", "err", "file")) else name: text
        for name, found in texts.items()
        for place, text in enumerate(sorted(found), 1)
    }


def environment(said: Said, names: Names) -> Items:
    """Every variable of the script and of every task."""
    items = {"exit code": str(said.code), **_numbered("err", names.text(said.err))}
    for path in left_files(said.folder):
        text = path.read_text(errors="replace")
        if path.suffix == ".env":
            items.update({f"{path.stem}:{name}": value for name, value in names.environment(text).items()})
        elif path.suffix == ".out":
            items.update(_numbered("output", names.text(text)))
    return items


def keys(said: Said, names: Names) -> Items:
    """Records of KEY=VALUE words, as `scontrol show` prints them; a record is named after its first word."""
    items = {"exit code": str(said.code), **_numbered("err", names.text(said.err))}
    for record in re.split(r"\n\s*\n", names.text(said.out).strip()):
        words = list(_KEY.finditer(record))
        title = ""
        for place, word in enumerate(words):
            end = words[place + 1].start() if place + 1 < len(words) else len(record)
            value = normal.elapsed(record[word.end() : end].strip())
            value = f"<{word[1]}>" if word[1] in normal.PASSING else value
            title = title or f"{word[1]}={value}"
            items[_fresh(f"{title} {word[1]}", items)] = value
    return items


def table(said: Said, names: Names) -> Items:
    """Lines of columns; times that pass are hidden."""
    items = {"exit code": str(said.code), **_numbered("err", names.text(said.err))}
    items.update(_numbered("out", normal.elapsed(names.text(said.out))))
    return items


def rows(said: Said, names: Names) -> Items:
    """As `table`, where the order of the lines means nothing: sorted."""
    items = table(said, names)
    lines = sorted(text for name, text in items.items() if name.startswith("out "))
    kept = {name: text for name, text in items.items() if not name.startswith("out ")}
    return kept | {f"out {place}": line for place, line in enumerate(lines, 1)}


def cells(said: Said, names: Names) -> Items:
    """Columns between bars under a header: an item for each cell, named after its row's first cell and its column."""
    items = {"exit code": str(said.code), **_numbered("err", names.text(said.err))}
    header, *lines = [line.split("|") for line in names.text(said.out).splitlines()] or [[]]
    items["header"] = "|".join(header)
    for line in lines:
        title = _fresh(line[0], items)
        items[title] = "listed"
        items |= {f"{title} {name}": normal.elapsed(value) for name, value in zip(header, line)}
    return items


def settings(said: Said, names: Names) -> Items:
    """Lines of `Name = value`, each an item by its name; other lines in their order."""
    items = {"exit code": str(said.code), **_numbered("err", names.text(said.err))}
    others = []
    for line in names.text(said.out).splitlines():
        name, equals, value = line.partition(" = ")
        if equals:
            items[_fresh(name.strip(), items)] = value.strip()
        else:
            others.append(line)
    return items | _numbered("out", "\n".join(others))


def tree(said: Said, names: Names) -> Items:
    """The leaves of a JSON document."""
    items = {"exit code": str(said.code), **_numbered("err", names.text(said.err))}
    try:
        document = json.loads(said.out)
    except json.JSONDecodeError as error:
        return items | {"json": f"{error}: {said.out[:200]}"}
    document.pop("meta", None)
    for path, value in _leaves(document, ""):
        passing = _PASSING_LEAF.search(path)
        items[path] = f"<{passing[0]}>" if passing else normal.elapsed(names.text(value))
    return items


READINGS: dict[str, Callable[[Said, Names], Items]] = {
    "lines": lines,
    "unordered": unordered,
    "environment": environment,
    "keys": keys,
    "table": table,
    "rows": rows,
    "cells": cells,
    "settings": settings,
    "json": tree,
}


def left_files(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return sorted(path for path in found if path.suffix != ".sh")


def _numbered(name: str, text: str) -> Items:
    lines = [line.rstrip() for line in text.splitlines()]
    if name == "err":
        lines = [line for line in lines if line]
    return {f"{name} {place}": line for place, line in enumerate(lines, 1)}


def _fresh(name: str, items: Items) -> str:
    """A name that is not taken: some words stand twice in a record."""
    place, fresh = 2, name
    while fresh in items:
        fresh, place = f"{name} ({place})", place + 1
    return fresh


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{_title(inner, place)}]")
    else:
        yield path, json.dumps(value)


def _title(value: Any, place: int) -> str:
    """Which element of a list it is: by its name or job, where it has one, since lists may be in another order."""
    match value:
        case {"job_id": int(known)} | {"name": str(known)} if known != "":
            return str(known)
        case {"type": str(known)}:  # a TRES without a name
            return known
        case {"partition": {"name": str(partition)}, "nodes": {"nodes": [str(first), *_]}}:  # a group of sinfo's
            return f"{partition} {first}"
    return str(place)
