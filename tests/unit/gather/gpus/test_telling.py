"""GPUs with the owners of their processes put to them, as a round tells it."""

from __future__ import annotations

import asyncio

from bireme.gather.gpus.source import GpuProcess
from bireme.gather.gpus.telling import ToldGpus
from bireme.gather.gpus.watching import GpuRound
from bireme.gather.messages import Device, Happening
from bireme.gather.owners import OwnedTask

ANN, BOB = OwnedTask("n1", "7.0.0.0", 11), OwnedTask("n2", "8.0.0.1", 21)
DEVICES = (Device(uuid="GPU-0", node="box", index=0), Device(uuid="GPU-1", node="box", index=1))


class Rounds:
    """Rounds that a test wrote."""

    is_stale = False

    def __init__(self, *rounds: GpuRound) -> None:
        self._rounds = list(rounds)

    def round(self) -> GpuRound:
        return self._rounds.pop(0)


def seen(processes: dict[str, list[GpuProcess]], *happenings: Happening) -> GpuRound:
    return GpuRound(5.0, DEVICES, {uuid: {"gpu_answers": 1} for uuid in processes}, processes, list(happenings))


def told_of(*rounds: GpuRound) -> ToldGpus:
    return ToldGpus(Rounds(*rounds))  # type: ignore[arg-type]


def test_tasks_have_their_shares_and_the_rest_is_unowned() -> None:
    gpus = told_of(seen({"GPU-0": [GpuProcess(11, 100.0, 30.0), GpuProcess(21, 50.0, 10.0), GpuProcess(99, 7.0)]}))
    asyncio.run(gpus.look())
    of_gpus, of_ann, of_bob = gpus.frames({11: ANN, 21: BOB})
    assert (of_gpus.node, of_gpus.ids) == ("box", ["GPU-0"])
    assert of_gpus.columns["gpu_unowned_memory"] == [7.0]
    assert (of_ann.about, of_ann.node, of_ann.ids) == ("use", "n1", ["7.0.0.0@GPU-0"])
    assert of_ann.columns == {"use_gpu_memory": [100.0], "use_gpu_util": [30.0]}
    assert (of_bob.node, of_bob.ids) == ("n2", ["8.0.0.1@GPU-0"])
    assert [device.uuid for device in gpus.devices()] == ["GPU-0", "GPU-1"]


def test_an_error_is_of_the_task_even_if_its_process_is_dead_by_then() -> None:
    error = Happening(at=5.0, node="box", kind="xid", uuid="GPU-0", code=43, pid=11)
    gpus = told_of(seen({"GPU-0": [GpuProcess(11, 100.0)]}), seen({"GPU-0": []}, error))
    asyncio.run(gpus.look())
    gpus.frames({11: ANN})
    assert gpus.happenings() == []
    asyncio.run(gpus.look())
    gpus.frames({})
    (told,) = gpus.happenings()
    assert (told.code, told.task, told.node) == (43, "7.0.0.0", "n1")
    assert gpus.happenings() == []


def test_a_gpu_that_does_not_answer_has_no_unowned_memory() -> None:
    silent = GpuRound(5.0, DEVICES, {"GPU-0": {"gpu_answers": 0}}, {})
    gpus = told_of(silent)
    asyncio.run(gpus.look())
    (frame,) = gpus.frames({})
    assert frame.columns == {"gpu_answers": [0]}
