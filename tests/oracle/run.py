"""Runs groups of cases on pairs of clusters and compares what came out: for the tests and `python -m tests.oracle`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from tests.oracle.cases import Case, Group
from tests.oracle.compare import Difference, Known, Outcome, compare
from tests.oracle.decisions import decide
from tests.oracle.layouts import LAYOUTS
from tests.oracle.normal import Names
from tests.oracle.pair import Pair, System, started
from tests.oracle.readings import READINGS, Items, left_files
from tests.slurm_cluster import installed


@dataclass(slots=True)
class Findings:
    """Everything that a group said, for showing and for the totals."""

    group: str
    spent_s: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    said: dict[str, tuple[Items, Items]] = field(default_factory=dict)


AT_ONCE = 2
"""Pairs of clusters beside each other: most of the time all of them wait."""


TRIES = 3
"""What came out otherwise is asked for again: one of the two may have been seen in the middle of a change."""


def only(groups: list[Group], wanted: Callable[[Case], bool]) -> list[Group]:
    """The groups with those cases alone that are wanted and that this release of Slurm can be asked."""
    version, kept = installed().version, []
    for group in groups:
        cases = tuple(case for case in group.cases if wanted(case) and case.applies_to(version))
        if cases:
            kept.append(replace(group, cases=cases))
    return kept


def run_groups(groups: list[Group], known: list[Known]) -> Iterator[Findings]:
    """The longest first."""
    first = sorted(groups, key=lambda group: -group.seconds)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(run_group, group, known) for group in first]
        yield from (done.result() for done in as_completed(running))


def run_group(group: Group, known: list[Known]) -> Findings:
    begun = time.monotonic()
    try:
        findings = _found(group, known)
    except (RuntimeError, AssertionError) as error:  # it did not start, or its setup failed: the others go on
        failed = Outcome(f"{group.name}/could not be run", 1, [Difference("run", "", str(error))])
        return Findings(group.name, time.monotonic() - begun, [failed])
    findings.spent_s = time.monotonic() - begun
    return findings


def _found(group: Group, known: list[Known]) -> Findings:
    with started(LAYOUTS[group.layout]) as pair:
        if group.read_as_decisions:
            return _decisions(group, pair, known)
        with ThreadPoolExecutor(2) as pool:
            theirs, ours = pool.map(lambda system: _items(system, group), pair.systems)
        findings = Findings(group.name)
        for case in group.cases:
            both = theirs[case.name], ours[case.name]
            outcome = compare(case.title, *both, known)
            for number in range(1, TRIES):
                if outcome.unknown:
                    both = _alone(pair, case, number)
                    outcome = compare(case.title, *both, known)
            findings.said[case.title] = both
            findings.outcomes.append(outcome)
    return findings


def _alone(pair: Pair, case: Case, number: int) -> tuple[Items, Items]:
    """Once more, with nothing beside it: what differs by chance is no difference between the systems."""
    with ThreadPoolExecutor(2) as pool:
        theirs, ours = pool.map(lambda system: _read(system, case, f"again{number}."), pair.systems)
    return theirs, ours


def _set_up(system: System, group: Group) -> None:
    done = system.run(group.setup, "setup")
    if done.code:
        raise RuntimeError(f"{group.name}: the setup failed on {system.name}\n{done.out}{done.err}")


def _items(system: System, group: Group) -> dict[str, Items]:
    _set_up(system, group)
    with ThreadPoolExecutor(group.at_once) as pool:
        found = pool.map(lambda case: _read(system, case), group.cases)
        return {case.name: items for case, items in zip(group.cases, found)}


def _read(system: System, case: Case, where: str = "") -> Items:
    folder = where + re.sub(r"[^\w-]+", "_", case.name)[:60] + f".{abs(hash(case.name)) % 10000}"
    said = system.run(case.run, folder)
    left = left_files(said.folder)
    texts = [said.out, said.err, *(path.name for path in left), *(path.read_text(errors="replace") for path in left)]
    names = Names([str(said.folder), str(system.folder)], texts, installed().version)
    return READINGS[case.read](said, names)


def _decisions(group: Group, pair: Pair, known: list[Known]) -> Findings:
    """One case after another: each has the whole cluster."""
    findings = Findings(group.name)
    for system in pair.systems:
        _set_up(system, group)
    for case in group.cases:
        for _ in range(TRIES):
            with ThreadPoolExecutor(2) as pool:
                theirs, ours = pool.map(lambda system, case=case: decide(system, case), pair.systems)
            outcome = compare(case.title, theirs.items, ours.items, known)
            if not outcome.unknown:
                break
        findings.said[case.title] = theirs.items, ours.items
        outcome.notes.extend(ours.choices_beside(theirs, LAYOUTS[group.layout]))
        findings.outcomes.append(outcome)
    return findings
