"""How large a request may be: each limit, from below and from above."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from bireme.core.jobs.sizes import (
    ELEMENT,
    LARGEST,
    LIST,
    LISTS,
    TEXT,
    TEXTS,
    WHOLE,
    check_job,
    check_sizes,
    check_step,
)
from bireme.core.jobs.submission import submit
from bireme.core.lifecycle.apply import apply
from bireme.core.model.distribution import Distribution, NodeMethod
from bireme.core.model.events import ClusterConfigured, Recorded
from bireme.core.model.jobs import (
    ArraySpec,
    Dependencies,
    Dependency,
    DependencyKind,
    JobSpec,
    Owner,
    ResourceRequest,
    WarningSignal,
)
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.model.resources import GresRequest
from bireme.core.model.steps import StepSpec
from bireme.core.state.state import State
from bireme.testing.worlds import build_cluster

OWNER = Owner(uid=1, gid=1, user="ann")
CALLER = Caller(uid=1, gid=1, user="ann")


@pytest.fixture
def state() -> State:
    made = State()
    apply(made, Recorded(1, 0.0, "test", ClusterConfigured(build_cluster("2x8"))))
    return made


def job(**fields: Any) -> JobSpec:
    return JobSpec(owner=OWNER, script="x", **fields)


def asking(**fields: Any) -> JobSpec:
    return job(resources=ResourceRequest(**fields))


def test_tasks_are_counted_before_any_node_is_known() -> None:
    with pytest.raises(Refusal, match="Task count specification invalid"):
        check_job(State(), asking(ntasks=1_000))
    check_job(State(), asking(ntasks=100))


AFTER = Dependency(DependencyKind.AFTER_ANY, 1)


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (job(name="x" * 1024), job(name="x" * 1025)),
        (job(comment="x" * 1024), job(comment="x" * 1025)),
        (job(work_dir="/" * 4096), job(work_dir="/" * 4097)),
        (job(partitions=("p",) * 256), job(partitions=("p",) * 257)),
        (job(argv=("x" * 131072,)), job(argv=("x" * 131073,))),
        (job(dependencies=Dependencies((AFTER,) * 10_000)), job(dependencies=Dependencies((AFTER,) * 10_001))),
        (asking(cpus_per_task=LARGEST), asking(cpus_per_task=LARGEST + 1)),
        (asking(memory_per_cpu_mib=0), asking(memory_per_cpu_mib=-1)),
        (asking(nodelist=("n",) * 65_536), asking(nodelist=("n",) * 65_537)),
        (asking(gres_per_node=(GresRequest("gpu", None, 8),)), asking(gres_per_node=(GresRequest("gpu", None, -8),))),
        (asking(constraint="&".join("a" * 128)), asking(constraint="&".join("a" * 129))),
        (asking(constraint="a|b"), asking(constraint="[[a")),
        (asking(prefer="a|b"), asking(prefer="a||b")),
        (job(begin_at=4e9), job(begin_at=float("nan"))),
        (job(time_limit_s=10**12), job(time_limit_s=10**12 + 1)),
        (job(priority=2**32 - 3), job(priority=2**32 - 2)),
        (job(priority=0), job(priority=-5)),
        (job(nice=2**31 - 3), job(nice=2**31 - 2)),
        (job(umask=0o777), job(umask=10**9)),
        (job(umask=0), job(umask=-1)),
        (job(warning=WarningSignal(64)), job(warning=WarningSignal(65))),
    ],
)
def test_a_job_is_taken_up_to_the_limit(state: State, good: JobSpec, bad: JobSpec) -> None:
    check_job(state, good)
    with pytest.raises(Refusal):
        check_job(state, bad)
    with pytest.raises(Refusal):
        submit(state, CALLER, [bad], 0.0)


def test_tasks_are_counted_before_they_are_laid_out(state: State) -> None:
    nodes = len(state.nodes)
    check_job(state, asking(ntasks=512 * nodes, overcommit=True))
    check_step(state, StepSpec(ntasks=512 * nodes, overcommit=True), nodes)
    for spec in (StepSpec(ntasks=512 * nodes + 1), StepSpec(ntasks_per_node=513), StepSpec(ntasks=10**9, nodes_max=1)):
        with pytest.raises(Refusal, match="Task count"):
            check_step(state, spec, nodes)
    with pytest.raises(Refusal, match="Task count"):
        check_job(state, asking(ntasks=10**9, overcommit=True))


def test_a_plane_has_a_size(state: State) -> None:
    with pytest.raises(Refusal):
        check_step(state, StepSpec(distribution=Distribution(NodeMethod.PLANE, plane_size=-1)), 1)


@pytest.mark.parametrize("tasks", [(5, 1), (1, 1), (10**10, 1), (-1, 1)])
def test_an_array_has_ascending_tasks(state: State, tasks: tuple[int, ...]) -> None:
    with pytest.raises(Refusal):
        submit(state, CALLER, [job(array=ArraySpec(tasks))], 0.0)


def test_a_heterogeneous_job_has_so_many_components(state: State) -> None:
    with pytest.raises(Refusal, match="not supported"):
        submit(state, CALLER, [job()] * 129, 0.0)


@pytest.mark.parametrize("kind", [JobSpec, StepSpec])
def test_no_text_holds_a_nul(kind: Any) -> None:
    """It would be accepted, and fail where a file is opened or a program started."""
    texts = [each for each in fields(kind) if each.type in ("str", "tuple[str, ...]")]
    assert len(texts) > 15
    given = {"owner": OWNER} if kind is JobSpec else {}
    for each in texts:
        bad = "a\0b" if each.type == "str" else ("a\0b",)
        with pytest.raises(Refusal) as refusal:
            check_sizes(kind(**given, **{each.name: bad}))
        assert refusal.value.hint.startswith(f"{each.name} contains a NUL character")


@pytest.mark.parametrize("kind", [JobSpec, ResourceRequest, StepSpec])
def test_every_text_and_list_has_a_length(kind: Any) -> None:
    """Walks the fields, so that a new one has a limit too: the daemon keeps all of them in memory."""
    given = {"owner": OWNER} if kind is JobSpec else {}
    seen = 0
    for each in fields(kind):
        longest, most = TEXTS.get(each.name, TEXT), LISTS.get(each.name, LIST)
        over: list[Any] = []
        if each.type == "str":
            over = ["x" * (longest + 1)]
        elif "tuple[str, ...]" in each.type:
            over = [("x" * (longest + 1),), ("",) * (most + 1)]
        elif each.type.startswith("tuple["):
            over = [(None,) * (most + 1)]
        for bad in over:
            seen += 1
            with pytest.raises(Refusal) as refusal:
                check_sizes(kind(**given, **{each.name: bad}))
            assert refusal.value.hint.startswith(f"{each.name} has ")
    assert seen > 8


def test_all_texts_together_have_a_length() -> None:
    """Each of them within its own limit."""
    fits = WHOLE // (131_072 + ELEMENT)
    check_sizes(StepSpec(argv=("x" * 131_072,) * fits))
    for bad in (
        job(argv=("x" * 131_072,) * 17),
        StepSpec(argv=("x" * 131_072,) * (fits + 1)),
        asking(nodelist=("n" * 99,) * 65_536),
    ):
        with pytest.raises(Refusal) as refusal:
            check_sizes(bad)
        assert refusal.value.hint.startswith("all texts and lists together have ")
    check_sizes(asking(nodelist=("gpu-node-12345",) * 65_536))
