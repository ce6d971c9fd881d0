"""The cases as data: `cases/*.toml` read into `Group`s of `Case`s. What a case means is said in `readings.py`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("cases")
ENVIRONMENT = Path(__file__).with_name("environment.sh").read_text()


@dataclass(frozen=True, slots=True)
class Case:
    group: str
    name: str
    run: str
    """A bash snippet, run on either system in a folder of its own."""
    read: str
    """How what it said becomes items: a name of `readings.READINGS`."""
    settings: dict[str, Any] = field(default_factory=dict)

    def applies_to(self, version: tuple[int, int]) -> bool:
        """`since`: from which release of Slurm on it can be compared."""
        return version >= tuple(self.settings.get("since", (0, 0)))

    @property
    def title(self) -> str:
        return f"{self.group}/{self.name}"


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share a pair of clusters."""

    name: str
    layout: str
    cases: tuple[Case, ...]
    setup: str = ""
    """A snippet that is run first, once on each system."""
    seconds: int = 60
    """About how long it takes: the longest groups begin first."""
    at_once: int = 4
    """How many cases run at the same time on either system."""

    @property
    def read_as_decisions(self) -> bool:
        return all(case.read == "decision" for case in self.cases)


def load() -> list[Group]:
    return [_group(path) for path in sorted(FOLDER.glob("*.toml"))]


def _group(path: Path) -> Group:
    data = tomllib.loads(path.read_text())
    read = data.get("read", "lines")
    cases = tuple(_case(path.stem, entry, data, read) for entry in data["case"])
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), f"{path.name}: two cases of one name: {_twice(names)}"
    return Group(
        path.stem,
        data["layout"],
        cases,
        data.get("setup", ""),
        data.get("seconds", 60),
        data.get("at_once", 4),
    )


def _case(group: str, entry: dict[str, Any], data: dict[str, Any], read: str) -> Case:
    """`options` fills the group's template; `run` is a snippet as it stands; its name is itself when short."""
    if "options" in entry:
        run = data["template"].replace("<ENVIRONMENT>", ENVIRONMENT)
        run = run.replace("<OPTIONS>", entry["options"]).replace("<STEP>", entry.get("step", ""))
        name = entry.get("name") or entry["options"] + (f" | {entry['step']}" if "step" in entry else "")
    else:
        run, name = entry.get("run", ""), entry.get("name") or entry["run"]
    rest = {key: value for key, value in entry.items() if key not in ("options", "step", "run", "name", "read")}
    return Case(group, name.strip(), run, entry.get("read", read), rest)


def _twice(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
