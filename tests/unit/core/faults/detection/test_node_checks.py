"""What checks of a machine mean for its nodes, and which nodes HealthCheckNodeState names."""

from __future__ import annotations

import pytest

from bireme.core.faults.detection.node_checks import Checked, judge, of_program, wanted
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Gravity
from bireme.testing.scenario import Scenario


def report(world: Scenario, seen: list[o.Observation]) -> None:
    for each in seen:
        world.report(each)


FAILED = Checked("mount /data", "FAIL", "no answer within 4 s", "umount -l it")


def test_what_fails_is_found_until_it_passes() -> None:
    world = Scenario("2x8:h100")
    report(world, judge("n1", [FAILED, Checked("driver", "PASS", "8 GPUs", ""), Checked("clock", "WARN", "", "")], 1.0))
    assert world.findings() == {"health.mount_/data n1": "broken"}
    (seen,) = (each for each in judge("n1", [FAILED], 1.0) if isinstance(each, o.TroubleSeen))
    assert (seen.trouble.cause, seen.trouble.lasts) == ("storage_stale", True)
    assert seen.trouble.quotes[0].text == "FAIL mount /data: no answer within 4 s"
    report(world, judge("n2", [Checked("mount /data", "PASS", "it answers", "")], 2.0))
    assert world.findings() != {}, "of another node"
    report(world, judge("n1", [Checked("mount /data", "PASS", "it answers", "")], 2.0))
    assert world.findings() == {}


def test_the_sites_own_program_is_a_note_until_it_ends_well() -> None:
    world = Scenario("1x8")
    for code, words in ((2, "HealthCheckProgram ended with 2"), (None, "took too long and was killed")):
        seen = of_program("n1", "/bin/check", code, "disk is bad", 1.0)
        assert isinstance(seen, o.TroubleSeen)
        assert seen.trouble.gravity is Gravity.NOTE
        assert words in seen.trouble.title
    world.report(of_program("n1", "/bin/check", 2, "disk is bad", 1.0))
    assert world.findings() == {"health.program n1": "note"}
    world.report(of_program("n1", "/bin/check", 0, "", 2.0))
    assert world.findings() == {}


@pytest.mark.parametrize(
    ("states", "nodes"),
    [
        ("ANY", ["n1", "n2", "n3", "n4"]),
        ("any,cycle", ["n1", "n2", "n3", "n4"]),
        ("CYCLE", ["n1", "n2", "n3", "n4"]),
        ("IDLE", ["n3", "n4"]),
        ("NONDRAINED_IDLE", ["n3"]),
        ("ALLOC", ["n1"]),
        ("MIXED,IDLE", ["n2", "n3", "n4"]),
        ("START_ONLY", []),
    ],
)
def test_nodes_by_their_state(states: str, nodes: list[str]) -> None:
    world = Scenario("5x8")
    world.submit("all", nodelist=("n1",), cpus_per_task=8)
    world.submit("some", nodelist=("n2",), cpus_per_task=2)
    world.settle()
    world.node("n4", "DRAIN")
    world.lose("n5")
    assert wanted(world.state, states) == nodes


def test_what_fails_on_the_machine_of_a_rehearsal_is_one_finding_and_fences_nothing() -> None:
    world = Scenario("4x8")
    world.healing_policy()
    report(world, judge("n1", [FAILED], 1.0, sharers=4))
    (gravity,) = world.findings().values()
    assert gravity == "degraded"
    world.settle()
    assert world.fences() == {}
    (seen,) = judge("n1", [FAILED], 1.0, sharers=4)
    assert isinstance(seen, o.TroubleSeen)
    assert "fails on the machine of all 4 nodes" in seen.trouble.title
