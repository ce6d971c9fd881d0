"""Which GPUs a task sees: compared with `srun --gpu-bind` of Slurm 22.05 on a node with four GPUs."""

from __future__ import annotations

import pytest

from bireme.core.steps.gpu_binding import bind_gpus

FOUR = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("wish", "tasks", "bound"),
    [
        ("map_gpu:1,0", 4, ((1,), (0,), (1,), (0,))),
        ("map_gpu:0*2,1*2", 4, ((0,), (0,), (1,), (1,))),
        ("map_gpu:9", 2, ((0,), (0,))),
        ("mask_gpu:0x3,0x4", 2, ((0, 1), (2,))),
        ("mask_gpu:f", 2, (FOUR, FOUR)),
        ("single:1", 4, ((0,), (1,), (2,), (3,))),
        ("verbose,single:2", 4, ((0,), (0,), (1,), (1,))),
        ("single:0", 2, ((0,), (1,))),
        ("per_task:2", 2, ((0, 1), (2, 3))),
        ("per_task:3", 2, ()),
        ("closest", 2, ()),
        ("none", 2, ()),
        ("", 2, ()),
    ],
)
def test_a_wish_binds_tasks(wish: str, tasks: int, bound: tuple[tuple[int, ...], ...]) -> None:
    assert bind_gpus(wish, FOUR, tasks) == bound


@pytest.mark.parametrize("wish", ["map_gpu:1", "mask_gpu:2", "single:1", "per_task:1"])
def test_a_lone_task_is_not_bound(wish: str) -> None:
    assert bind_gpus(wish, FOUR, 1) == ()


def test_gpus_per_task_and_tasks_per_gpu_bind_unless_the_user_says_how() -> None:
    assert bind_gpus("", FOUR, 4, per_task=1) == ((0,), (1,), (2,), (3,))
    assert bind_gpus("", FOUR, 4, tasks_per_gpu=2) == ((0,), (0,), (1,), (1,))
    assert bind_gpus("closest", FOUR, 4, per_task=1) == ()


@pytest.mark.parametrize("wish", ["map_gpu:", "map_gpu:x", "mask_gpu:zz", "nonsense"])
def test_nonsense_binds_nothing(wish: str) -> None:
    assert bind_gpus(wish, FOUR, 2) == ()
