"""The chain of what stands around a task: each wrapper adds its own, and takes nothing away."""

from __future__ import annotations

from bireme.agent.starting.spawn import Birth
from bireme.agent.starting.wrappers import InCgroups, OnCpus, wrapped

TASK = Birth(argv=["train"], env={}, stdin=0, stdout=1, stderr=2)


def test_a_task_without_wrappers_is_as_it_was() -> None:
    assert wrapped(TASK, ()) == TASK


def test_each_wrapper_adds_its_own() -> None:
    birth = wrapped(TASK, (OnCpus(frozenset({3})), InCgroups(("/job/step_0",)), InCgroups(("/job",))))
    assert birth.cpu_ids == {3}
    assert list(birth.join_files) == ["/job", "/job/step_0"], "the outermost is entered first"
    assert (birth.argv, birth.env, birth.streams) == (TASK.argv, TASK.env, TASK.streams)


def test_who_is_bound_already_stays_so() -> None:
    assert wrapped(TASK, (OnCpus(frozenset({1})), OnCpus(frozenset({2})))).cpu_ids == {1}
