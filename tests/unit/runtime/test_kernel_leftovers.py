"""What an engine is told of starts that the state no longer holds: ended first, acknowledged when nothing is left."""

from __future__ import annotations

from pathlib import Path

from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.runtime.kernel import Group, Kernel
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.testing.worlds import build_cluster


def kernel_with_nodes(folder: Path) -> Kernel:
    kernel = Kernel(SqliteStore(str(folder / "journal.db"), durable=False), rows_of)
    kernel.commit(kernel.configure(build_cluster("2x8"), 0.0))
    return kernel


def turn(kernel: Kernel, *seen: o.Observation) -> Group:
    kernel.observations.extend(seen)
    group = kernel.turn(1.0, time_passed=False)
    kernel.commit(group)
    return group


def test_what_a_node_still_holds_is_ended_and_not_acknowledged_before_it_is_gone(tmp_path: Path) -> None:
    kernel = kernel_with_nodes(tmp_path)
    group = turn(kernel, o.NodeAnswered("n1", "agent", ((7, 2),), 1.0))
    assert kernel.commands(group) == [c.TerminateJob(7, 2, ("n1",), 0, given_up=("n1",))]
    assert group.acknowledged == []
    assert turn(kernel, o.JobLaunched(7, 2, 1.0)).acknowledged == [], "it would not be heard out"
    assert turn(kernel, o.JobCleared(7, 2, 1.0)).acknowledged == [(7, 2)]


def test_a_start_that_is_left_somewhere_is_acknowledged_when_it_is_left_nowhere(tmp_path: Path) -> None:
    kernel = kernel_with_nodes(tmp_path)
    turn(kernel, o.NodeAnswered("n1", "agent", ((7, 2),), 1.0), o.NodeAnswered("n2", "agent", ((7, 2),), 1.0))
    assert turn(kernel, o.JobCleared(7, 2, 1.0, uncleared_on=("n2",))).acknowledged == []
    assert turn(kernel, o.JobCleared(7, 2, 1.0)).acknowledged == [(7, 2)]


def test_a_node_that_is_not_ours_is_told_to_end_it_too(tmp_path: Path) -> None:
    kernel = kernel_with_nodes(tmp_path)
    group = turn(kernel, o.NodeAnswered("gone", "agent", ((7, 2),), 1.0))
    assert kernel.commands(group) == [c.TerminateJob(7, 2, ("gone",), 0)]
    assert turn(kernel, o.JobCleared(7, 2, 1.0)).acknowledged == [(7, 2)]
