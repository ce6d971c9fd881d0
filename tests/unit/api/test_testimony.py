"""What the daemon knows of a job's end: faults that concern the job, and no others; the files that it wrote to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from bireme.api.looking_back.known import Sources
from bireme.api.looking_back.testimony import MOST_OUTPUTS, Whose, evidence_of
from bireme.core.model import events as e
from bireme.core.model.jobs import Outcome
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare
from bireme.core.model.steps import StepNode, StepSpec
from bireme.ports import Happened, Holding, Series, SeriesError, Store

WHOSE = Whose(
    job="7", job_id=7, array_job_id=None, array_task_id=None, name="train", user="ada", uid=1000, state="FAILED",
    std_out="/home/ada/slurm-7.out", std_err="/home/ada/slurm-7.out", work_dir="/home/ada",
    record={"job_id": 7, "state": "FAILED", "exit_code": 3, "start_time": 100.0, "end_time": 120.0},
)  # fmt: skip
NFS = "nfs: server x not responding"
STRAY = "a process of nobody's is on the GPU"
CRASH = "train[9]: segfault at 0"
HELD = Holding(7, 1, "n1", "GPU-a", False, 100.0, 120.0)


class Kept:
    """A store with one job's story."""

    def __init__(self, *events: e.Event) -> None:
        self._events = [e.Recorded(number, 100.0 + number, "test", event) for number, event in enumerate(events)]

    def story(self, job_id: int) -> list[e.Recorded]:
        return self._events

    def finished(self, query: Any) -> list[dict[str, Any]]:
        return []


class Faults:
    """A store of series with happenings."""

    def __init__(self, *happened: Happened, broken: bool = False) -> None:
        self._happened, self._broken = happened, broken

    def holdings(self, *, uuid: str = "", **_: Any) -> list[Holding]:
        if self._broken:
            raise SeriesError("the disk is full")
        before, after = replace(HELD, job_id=6, start=50.0, end=99.5), replace(HELD, job_id=8, start=125.0, end=None)
        return [before, HELD, after] if uuid else [HELD]

    def happenings(self, *, task_prefix: str, uuids: Any, start: float, end: float) -> list[Happened]:
        mine = (one for one in self._happened if one.uuid in uuids or one.task.startswith(task_prefix))
        return [one for one in mine if start <= one.at <= end]


ENDED = (
    e.JobAllocated(7, Allocation(7, 1, "main", (NodeShare("n1", 1, 10),))),
    e.JobEnding(7, 1, Outcome("FAILED", ExitStatus(3))),
)


def evidence(series: Faults | None, *events: e.Event, whose: Whose = WHOSE) -> dict[str, Any]:
    sources = Sources(
        store=cast(Store, Kept(*(events or ENDED))),
        series=cast("Series | None", series),
        no_series="off",
        gpu_names={"GPU-a": "n1 GPU 0"},
        machines={"n1": "host1"},
    )
    return evidence_of(whose, sources, 200.0)


def faults(*happened: Happened) -> list[tuple[str, str]]:
    told = evidence(Faults(*happened))
    return [(line["source"], line["text"]) for line in told["lines"] if line["source"] != "record"]


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        (
            Happened(101.0, "n1", "xid", "GPU-a", 31, 521, "7.1.0.3", "name=train, MMU Fault"),
            [("device", "Xid 31, pid=521, name=train, MMU Fault")],
        ),
        (Happened(101.0, "n1", "xid", "GPU-a", 79, 0, "", "GPU has fallen"), [("device", "Xid 79, GPU has fallen")]),
        (Happened(101.0, "n1", "xid", "GPU-a", 31, 9, "8.1.0.0", "name=theirs"), []),
        (Happened(101.0, "n1", "xid", "GPU-a", 31, 9, "", "name=train"), [("device", "Xid 31, pid=9, name=train")]),
        (Happened(121.0, "n1", "xid", "GPU-a", 31, 9), [("device", "Xid 31, pid=9")]),
        (Happened(99.0, "n1", "xid", "GPU-a", 31, 9), []),
        (Happened(125.5, "n1", "xid", "GPU-a", 31, 9), []),
        (Happened(101.0, "n1", "stray", "GPU-a", pid=9, text="secret"), [("device", STRAY)]),
        (Happened(101.0, "n1", "gpu lost", "GPU-a", text="timed out"), [("device", "GPU is lost, timed out")]),
        (Happened(101.0, "host1", "kernel", text=NFS), [("kernel", NFS)]),
        (Happened(101.0, "host2", "kernel", text=NFS), []),
        (Happened(101.0, "host1", "kernel", pid=9, text="other[9]: segfault at 0"), []),
        (Happened(101.0, "n1", "kernel", pid=9, task="7.1.0.3", text=CRASH), [("kernel", CRASH)]),
        (Happened(500.0, "n1", "xid", "GPU-a", 79), []),
    ],
    ids=["its own", "its GPU's", "another job's", "of a process that is gone", "just after",
         "of the job before", "of the job after", "a stray", "lost", "its node's", "another node's",
         "another's process", "its own process", "long after"],
)  # fmt: skip
def test_faults_that_concern_the_job(happened: Happened, expected: list[tuple[str, str]]) -> None:
    assert faults(happened) == expected


def test_other_jobs_that_met_the_same_on_the_same_gpu_are_counted() -> None:
    mine = Happened(101.0, "n1", "xid", "GPU-a", 48, 5, "7.1.0.0", "DBE")
    others = [replace(mine, at=50.0 - number, task=f"{job}.1.0.0") for number, job in enumerate((3, 3, 4))]
    told = evidence(Faults(mine, *others, replace(mine, at=40.0, code=31, task="5.1.0.0")))
    (line,) = [line for line in told["lines"] if line["source"] == "device"]
    assert (line["others"], line["rank"], line["device"]) == (2, 0, "n1 GPU 0")


def test_what_is_missing_is_said() -> None:
    assert evidence(None)["absent"] == ["No faults of GPUs and nodes: off."]
    assert evidence(Faults(broken=True))["absent"] == ["Faults of GPUs and nodes cannot be read: the disk is full."]


def test_a_job_whose_story_is_gone_is_told_by_the_history() -> None:
    sources = Sources(store=cast(Store, Kept()), series=None, no_series="off", gpu_names={}, machines={})
    told = evidence_of(WHOSE, sources, 200.0)
    assert [line["text"] for line in told["lines"]] == ["state FAILED", "exit code 3"]
    assert "no longer in the journal" in told["absent"][0]


def step(**spec: Any) -> e.StepCreated:
    nodes = (StepNode("n1", (0, 1), 1), StepNode("n2", (2,), 1))
    return e.StepCreated(7, 1, 0, StepSpec(argv=("train",), **spec), nodes)


def test_output_files_of_the_script_and_of_every_rank() -> None:
    told = evidence(None, ENDED[0], step(std_out="log-%j-%t", work_dir="/scratch"), ENDED[1])
    assert [(output["path"], output["rank"], output["node"]) for output in told["outputs"]] == [
        ("/home/ada/slurm-7.out", None, ""),
        ("/scratch/log-7-0", 0, "n1"),
        ("/scratch/log-7-1", 1, "n1"),
        ("/scratch/log-7-2", 2, "n2"),
    ]


def test_output_that_nobody_keeps_is_no_file() -> None:
    told = evidence(None, ENDED[0], step(std_out="none", std_err="/dev/null"), ENDED[1])
    assert len(told["outputs"]) == 1


def test_so_many_files_and_no_more() -> None:
    nodes = tuple(StepNode(f"n{number}", tuple(range(number * 10, number * 10 + 10)), 1) for number in range(300))
    wide = replace(step(std_out="%t"), nodes=nodes)
    told = evidence(None, ENDED[0], wide, ENDED[1])
    assert len(told["outputs"]) == MOST_OUTPUTS
    assert any("more than" in text for text in told["absent"])


def test_of_a_part_of_a_gpu_only_what_its_own_processes_did_is_told() -> None:
    class Shared(Faults):
        def holdings(self, *, uuid: str = "", **_: Any) -> list[Holding]:
            return [replace(HELD, shared=True)]

    whoevers = Happened(101.0, "n1", "xid", "GPU-a", 31, 9)
    mine = Happened(102.0, "n1", "xid", "GPU-a", 31, 10, "7.1.0.0")
    told = evidence(Shared(whoevers, mine))
    assert [line["pid"] for line in told["lines"] if line["source"] == "device"] == [10]
