"""What is written into orders: whose stream of a step goes where, and nothing that an agent could not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from bireme.agent.messages.lines import encode_typed
from bireme.agent.messages.orders import Prepare, Start, StartStep, read_order
from bireme.core.model.cluster import ClusterConfig, NodeConfig, Settings
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.model.steps import HetStep, Step, StepNode, StepSpec
from bireme.engines.crew.payloads import PayloadWriter

JOB = Job(19, JobSpec(owner=Owner(uid=1, gid=2, user="ada"), work_dir="/home/ada"), 0.0, Pending(0.0))
NOWHERE = {"stdin": "/dev/null", "stdout": "/dev/null", "stderr": "/dev/null"}


class NoBlobs:
    def put(self, data: bytes, uid: int | None = None) -> str:
        raise NotImplementedError

    def get(self, blob_id: str) -> bytes:
        raise KeyError(blob_id)


def streams(first_task: int, **spec: Any) -> list[dict[str, Any]]:
    """Of the two tasks that a component has, from this task of the whole step on."""
    whole = HetStep(
        leader=18, first_task=first_task, first_node=first_task // 2, nodes=("n1", "n1"), node_of_task=(0, 0, 1, 1),
        held=(("n1", 2), ("n1", 2)),
    )  # fmt: skip
    writer = PayloadWriter(Path("/home"), ClusterConfig(nodes=(NodeConfig(name="n1", cpus=4),)), NoBlobs())
    allocation = Allocation(19, 1, "main", (NodeShare("n1", 2, 0, tasks=2),))
    step = Step(19, 0, StepSpec(het=whole, **spec), (StepNode("n1", (0, 1), 2),), 0.0)
    ((_, order),) = writer.step(JOB, allocation, step)
    told = [to_builtins(task) for task in order.tasks]
    assert [task["id"] for task in told] == [0, 1]
    return [{name: task[name] for name in ("stdin", "stdout", "stderr", "terminal") if name in task} for task in told]


@pytest.mark.parametrize(("first_task", "expected"), [(0, ["/dev/null"] * 2), (2, ["/dev/null", None])])
def test_one_tasks_input_is_that_of_the_whole_step(first_task: int, expected: list[str | None]) -> None:
    assert [task.get("stdin") for task in streams(first_task, std_in="3")] == expected


@pytest.mark.parametrize(("first_task", "expected"), [(0, [{"terminal": True}, NOWHERE]), (2, [NOWHERE, NOWHERE])])
def test_the_first_task_of_the_whole_step_has_the_terminal(first_task: int, expected: list[dict[str, Any]]) -> None:
    assert streams(first_task, pty=True) == expected


def test_files_are_named_after_tasks_of_the_whole_step() -> None:
    assert [task["stdout"] for task in streams(2, std_out="%j.%n.%t")] == ["/home/ada/18.1.2", "/home/ada/18.1.3"]


class OneBlob(NoBlobs):
    def get(self, blob_id: str) -> bytes:
        return {"script": b"#!/bin/sh\n", "env": b'{"A": "b"}'}[blob_id]


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(
            prolog=("/p",),
            epilog=("/e",),
            task_prolog="/tp",
            task_epilog="/te",
            prolog_epilog_timeout_s=5,
            unkillable_step_program="/u",
        ),
    ],
    ids=["plain", "with all around it"],
)
def test_an_agent_reads_what_is_written_for_it(settings: Settings) -> None:
    config = ClusterConfig(nodes=(NodeConfig(name="n1", cpus=4),), settings=settings)
    writer = PayloadWriter(Path("/home"), config, OneBlob())
    share = NodeShare("n1", 2, 500, cpu_ids=(0, 1), tasks=2)
    allocation = Allocation(19, 1, "main", (share,))
    owner = Owner(uid=1, gid=2, user="ada", groups=(2, 3))
    spec = JobSpec(owner=owner, work_dir="/home/ada", script="script", environment="env", argv=("x",), umask=18)
    job = Job(19, spec, 0.0, Pending(0.0))
    prepare = writer.prepare(job, allocation, share)
    step = Step(19, 0, StepSpec(argv=("true",), mpi="pmi2", environment="env"), (StepNode("n1", (0, 1), 2),), 0.0)
    ((_, stepped),) = writer.step(job, allocation, step)
    start = replace(writer.start(job, allocation, prepare, ()), alone=True)
    read = [read_order(encode_typed(replace(order, no=1))) for order in (prepare, start, stepped)]
    prepared, started, began = read
    assert isinstance(prepared, Prepare)
    assert isinstance(started, Start)
    assert isinstance(began, StartStep)
    assert (prepared.uid, prepared.groups, prepared.share.cpu_ids) == (1, (2, 3), (0, 1))
    assert (prepared.prolog, prepared.unkillable_program) == (settings.prolog, settings.unkillable_step_program)
    assert started.alone
    assert started.batch is not None
    assert (started.batch.script, started.batch.argv, started.batch.env["A"]) == ("#!/bin/sh\n", ("x",), "b")
    assert ([task.id for task in began.tasks], began.argv, began.env["A"]) == ([0, 1], ("true",), "b")
    assert began.world is not None
    assert began.world.node_of_rank == [0, 0]
