"""Ranks, nodes and times, by what stands before a line and by the names of files."""

from __future__ import annotations

import pytest

from bireme.evidence.whereabouts import Labels, rank_in_name, ranks_in_names, ranks_text, time_of

NOVEMBER = 1_794_725_415.0
"""2026-11-15 06:50:15 UTC."""


@pytest.mark.parametrize(
    ("text", "rank", "rest"),
    [
        ("[rank3]: Traceback", 3, "Traceback"),
        (
            "[rank3]:[E1115 06:50:15.123 NCCL.cpp:607] x",
            3,
            "[E1115 06:50:15.123 NCCL.cpp:607] x",
        ),
        ("[default12]:Traceback", 12, "Traceback"),
        ("[1,7]<stderr>: Killed", 7, "Killed"),
        ("3: text", None, "3: text"),
        ("[3]: text", None, "[3]: text"),
        ("[INFO] text", None, "[INFO] text"),
    ],
)
def test_labels_that_are_always_believed(text: str, rank: int | None, rest: str) -> None:
    where = Labels().of(text)
    assert (where.rank, where.text) == (rank, rest)


def test_numbers_are_ranks_only_where_all_lines_have_them() -> None:
    labels = Labels.of_sample([" 0: a", " 1: b", "10: c", "11: d"])
    assert (labels.of("11: Killed").rank, labels.of("11: Killed").text) == (11, "Killed")
    assert Labels.of_sample(["0: a", "total", "see", "there"]).of("0: a").rank is None
    assert Labels.of_sample(["0: a"]).of("0: a").rank is None
    assert Labels.of_sample(["[0]:a", "[1]:b", "[0]:c"]).of("[1]:x").rank == 1


def test_rays_and_nccls_labels() -> None:
    ray = Labels().of("(RayTrainWorker pid=4711, ip=10.0.0.7) ValueError: x")
    assert (ray.pid, ray.node, ray.text) == (4711, "10.0.0.7", "ValueError: x")
    nccl = Labels().of("gpu-17:4711:4800 [3] NCCL WARN Timeout")
    assert (nccl.node, nccl.pid, nccl.device, nccl.rank) == ("gpu-17", 4711, "gpu 3", None)
    assert nccl.text.startswith("gpu-17")


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("/l/run_1/attempt_0/3/stderr.log", 3),
        ("logs/rank_12.log", 12),
        ("train.rank3.err", 3),
        ("x-task-4.out", 4),
        ("slurm-4711.out", None),
        ("frank3.log", None),
    ],
)
def test_ranks_in_names(path: str, rank: int | None) -> None:
    assert rank_in_name(path) == rank


def test_ranks_of_files_that_were_named_together() -> None:
    assert ranks_in_names(["t-42-0.out", "t-42-1.out"]) == {"t-42-0.out": 0, "t-42-1.out": 1}
    assert ranks_in_names(["slurm-41.out", "slurm-42.out"]) == {}
    assert ranks_in_names(["a-0-1.out", "a-1-0.out"]) == {}
    assert ranks_in_names(["a-0.out"]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-15 06:50:15 | x",
        "[2026-11-15T06:50:15Z] x",
        "[E1115 06:50:15.000 x.cpp:1] x",
        "E1115 06:50:15 x",
        "Nov 15 06:50:15 node kernel: x",
        "[Sun Nov 15 06:50:15 2026] NVRM: Xid",
    ],
)
def test_times(text: str) -> None:
    assert time_of(text, 0.0, NOVEMBER + 60) == NOVEMBER


def test_a_time_without_a_year_is_not_in_the_future() -> None:
    assert time_of("E1231 23:59:59 x", 0.0, NOVEMBER) == 1_767_225_599.0
    assert time_of("Foo 15 06:50:15", 0.0, NOVEMBER) is None
    assert time_of("E9999 99:99:99 x", 0.0, NOVEMBER) is None


def test_ranks_in_words() -> None:
    assert ranks_text([4]) == "rank 4"
    assert ranks_text([0, 1, 2, 4, 6, 7]) == "ranks 0-2,4,6-7"
