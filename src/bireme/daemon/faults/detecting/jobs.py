"""What a running job does, gathered from the newest figures as one look for the judges of hangs and stragglers.

Called by `keeper` every few seconds. Invariants: a look is made only when every machine of the job has told a new round
since the one before; a GPU that the job shares is not in it, for its figures are not the job's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bireme.core.faults.detection.gauges import Figures
from bireme.core.faults.detection.hang import GpuLook, Look, TaskLook
from bireme.core.model.finding.findings import Place
from bireme.core.model.jobs import Job, JobKind, Running
from bireme.core.state.state import State
from bireme.core.telemetry.attribution import Card, HeldGpu, gpus_of, held_gpus
from bireme.core.telemetry.subjects import Subject
from bireme.daemon.faults.detecting.memory import Memory, Newest, task_of
from bireme.daemon.faults.detecting.places import Places

_PIPES = ("gpu_tensor_active", "gpu_fp64_active", "gpu_fp32_active", "gpu_fp16_active", "gpu_dram_active")
_LINKS = ("gpu_nvlink_sent", "gpu_nvlink_received", "gpu_pcie_sent", "gpu_pcie_received")


@dataclass(frozen=True, slots=True)
class Watched:
    """A start of a job, and the GPUs that it has alone."""

    job: Job
    nodes: tuple[str, ...]
    gpus: tuple[HeldGpu, ...]
    gpus_held: int
    may_hang: bool
    """A shell or a service waits for people: nobody can tell that from hanging."""

    @property
    def place(self) -> Place:
        return Place(job_id=self.job.id, generation=self.job.generation)

    @property
    def start(self) -> tuple[int, int]:
        return self.job.id, self.job.generation


def watched(state: State, cards: Mapping[str, Sequence[Card]]) -> Iterator[Watched]:
    """Jobs that run now. `cards`: by node, so that nobody looks through those of a whole pool for every job."""
    for job in state.holding.values():
        phase = job.phase
        if not isinstance(phase, Running) or job.spec.kind is JobKind.PODS:
            continue
        allocation = phase.allocation
        mine = [card for name in allocation.node_names for card in cards.get(name, ())]
        held = held_gpus(allocation, lambda name: state.nodes[name].config if name in state.nodes else None, mine)
        waits = job.spec.kind is JobKind.INTERACTIVE or job.spec.replica is not None
        alone = tuple(gpu for gpu in held if not gpu.shared)
        yield Watched(job, allocation.node_names, alone, gpus_of(allocation), not waits)


def look_at(one: Watched, memory: Memory, places: Places, now: float, gap_s: float) -> Look | None:
    """None: a machine of it has told nothing of late."""
    times = [memory.told_at.get(node) for node in one.nodes]
    if any(at is None or now - at > gap_s for at in times):
        return None
    tasks: dict[str, TaskLook] = {}
    ranks: dict[str, int] = {}
    for subject in memory.tasks.get(one.start, ()):
        newest = memory.of(subject, now, gap_s)
        name = task_of(subject.id.partition("@")[0])
        if newest is None or name is None:
            continue
        if subject.about == "use" and name.rank is not None:
            ranks[subject.id.partition("@")[2]] = name.rank
        elif subject.about == "task":
            tasks[subject.id] = _task(name.rank, newest)
    gpus = {}
    for gpu in one.gpus:
        if (newest := memory.of(Subject("gpu", gpu.node, gpu.uuid), now, gap_s)) is not None:
            place = places.of_gpu(gpu.node, gpu.uuid)
            called = f"{gpu.node} GPU {place.gpu if place.gpu is not None else gpu.uuid}"
            gpus[gpu.uuid] = _gpu(called, ranks.get(gpu.uuid), newest)
    return Look(at=min(at for at in times if at is not None), tasks=tasks, gpus=gpus, gpus_held=one.gpus_held)


def gang_of(one: Watched, memory: Memory, places: Places, now: float, gap_s: float) -> list[Figures]:
    """The figures of all its GPUs; none where one is missing."""
    found = []
    for gpu in one.gpus:
        newest = memory.of(Subject("gpu", gpu.node, gpu.uuid), now, gap_s)
        if newest is not None:
            place, model = places.of_gpu(gpu.node, gpu.uuid), places.model(gpu.node, gpu.uuid)
            found.append(Figures(place=place, at=newest.at, values=newest.values, model=model))
    return found if len(found) == one.gpus_held else []


def _task(rank: int | None, newest: Newest) -> TaskLook:
    said = newest.values
    written = [said[name] for name in ("output_position", "error_position") if name in said]
    moved = [said[name] for name in ("io_read", "io_written") if name in said]
    cpus = [said[name] for name in ("cpu_user", "cpu_system") if name in said]
    return TaskLook(
        rank=rank,
        written_b=sum(written) if written else None,
        io_kib_s=sum(moved) if moved else None,
        cpus=sum(cpus) if cpus else None,
    )


def _gpu(name: str, rank: int | None, newest: Newest) -> GpuLook:
    """Its work by what its own counters say, else by how much its memory is read: "util" is no work."""
    said = newest.values
    pipes = [said[pipe] for pipe in _PIPES if pipe in said]
    work = max(pipes) if pipes else said.get("gpu_sm_active", said.get("gpu_copy_util"))
    links = [said[link] for link in _LINKS if link in said]
    return GpuLook(
        name=name,
        rank=rank,
        work=work,
        links_kib_s=sum(links) if links else None,
        util=said.get("gpu_util"),
        holds_mib=said.get("gpu_memory_used"),
    )
