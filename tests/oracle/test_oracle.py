"""Bireme beside a real Slurm: every group of cases, item by item. `python -m tests.oracle` shows more."""

from __future__ import annotations

import pytest
from tests.oracle.cases import Group, load
from tests.oracle.compare import known_differences, unused
from tests.oracle.run import Findings, only, run_groups
from tests.slurm_cluster import installed, missing

GROUPS = load()

TOLERATED = 2
"""Of a group's items: on a busy machine one of the two may be looked at in the middle of a change. More is a
difference; `make compatibility` tolerates none."""

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=f"no Slurm to compare with: {missing()}"),
    pytest.mark.timeout(1200),  # the first group waits for all of them
]


@pytest.fixture(scope="session")
def findings(request: pytest.FixtureRequest) -> dict[str, Findings]:
    """What came out of every group that this run wants, beside each other."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    wanted = {group.name for item in items if (group := item.callspec.params.get("group")) is not None}
    groups = [group for group in GROUPS if group.name in wanted]
    known = known_differences(installed().version)
    return {one.group: one for one in run_groups(only(groups, lambda _: True), known)}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_both_say_the_same(group: Group, findings: dict[str, Findings]) -> None:
    """Or why not is said in differences.toml."""
    if group.name not in findings:
        pytest.skip(f"{installed().version_text} has nothing of it")
    outcomes = findings[group.name].outcomes
    differing = [outcome for outcome in outcomes if outcome.unknown]
    said = "\n".join(outcome.show() for outcome in differing)
    unexplained = sum(len(outcome.unknown) for outcome in differing)
    assert unexplained <= TOLERATED, f"differs, and differences.toml does not say why:\n{said}"
    worse = [note for outcome in outcomes for note in outcome.notes if note.startswith("WORSE")]
    assert not worse, "\n".join(worse)


def test_every_known_difference_is_still_one(findings: dict[str, Findings]) -> None:
    outcomes = [outcome for one in findings.values() for outcome in one.outcomes]
    gone = [f"{one.cases} {one.items}" for one in unused(known_differences(installed().version), outcomes)]
    assert not gone, f"agree now, so differences.toml must not list them: {gone}"
