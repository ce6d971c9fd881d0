"""A job that hangs is told in under a minute; an evaluation, a checkpoint, an end and what is not known are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from bireme.core.faults.detection.hang import GpuLook, Look, Pulse, TaskLook, judge, looked
from bireme.core.faults.detection.thresholds import Thresholds
from bireme.core.model import observations as o
from bireme.core.model.finding.findings import Place, Trouble

JOB = Place(job_id=42, generation=1)
STEP_S = 10.0
Scene = Callable[[float], Look]


class Job:
    """Two ranks on two GPUs: what they do is played, and every look is judged."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.pulse = Pulse()
        self.written = 0.0
        self.told: list[tuple[float, Trouble]] = []
        self.gone: list[float] = []

    def play(self, seconds: float, look: Callable[[Job], Look]) -> None:
        for _ in range(int(seconds / STEP_S)):
            self.at += STEP_S
            self.pulse = looked(self.pulse, look(self), 3.5 * STEP_S)
            for each in judge(JOB, self.pulse, Thresholds()):
                if isinstance(each, o.TroubleSeen):
                    self.told.append((self.at, each.trouble))
                else:
                    self.gone.append(self.at)

    def look(self, *, util: tuple[float, float], work: float, cpus: float, io: float = 0.0, links: float = 0.0) -> Look:
        return Look(
            at=self.at,
            tasks={f"r{n}": TaskLook(rank=n, written_b=self.written, io_kib_s=io, cpus=cpus) for n in (0, 1)},
            gpus={
                f"GPU-{n}": GpuLook(
                    name=f"n1 GPU {n}", rank=n, work=work, links_kib_s=links, util=util[n], holds_mib=7e4
                )
                for n in (0, 1)
            },
            gpus_held=2,
        )


def trains(job: Job) -> Look:
    job.written += 100.0
    return job.look(util=(99.0, 99.0), work=55.0, cpus=1.0, io=2000.0, links=1e6)


def hangs(job: Job) -> Look:
    """In a collective that does not come to its end: GPUs and CPUs spin."""
    return job.look(util=(100.0, 100.0), work=0.2, cpus=1.0, io=3.0)


def evaluates_on_cpus(job: Job) -> Look:
    return job.look(util=(0.0, 0.0), work=0.0, cpus=1.0)


def rests(job: Job) -> Look:
    return job.look(util=(0.0, 0.0), work=0.0, cpus=0.0)


def test_a_collective_that_does_not_come_to_its_end() -> None:
    job = Job()
    job.play(300, trains)
    stopped = job.at
    job.play(120, hangs)
    first, trouble = job.told[0]
    assert first - stopped < 60.0
    assert trouble.title.endswith("all its GPUs wait in a collective")
    assert trouble.since == stopped
    job.play(20, trains)
    assert job.gone[-1] == job.at, "it gets on again"


def test_a_rank_that_sleeps_while_the_others_wait_for_it_is_named() -> None:
    job = Job()
    job.play(300, trains)

    def one_sleeps(job: Job) -> Look:
        look = job.look(util=(100.0, 0.0), work=0.2, cpus=1.0)
        return replace(look, tasks={**look.tasks, "r1": replace(look.tasks["r1"], cpus=0.0)})

    stopped = job.at
    job.play(60, one_sleeps)
    assert job.told[0][0] - stopped < 60.0
    assert "rank 1 is not in the collective that the others wait in" in job.told[0][1].title


def test_a_deadlock_without_any_gpu_at_work() -> None:
    job = Job()
    job.play(300, trains)
    stopped = job.at
    job.play(60, rests)
    assert job.told[0][0] - stopped < 60.0


def test_an_evaluation_on_gpus_is_work() -> None:
    job = Job()
    job.play(300, trains)
    job.play(1800, lambda job: job.look(util=(60.0, 60.0), work=20.0, cpus=1.0))
    assert job.told == []


def test_an_evaluation_on_cpus_is_given_longer_and_what_it_did_before_is_remembered() -> None:
    job = Job()
    job.play(300, trains)
    job.play(250, evaluates_on_cpus)
    assert job.told == []
    job.play(300, trains)
    job.play(480, evaluates_on_cpus)
    assert job.told == [], "it took 250 s before, and went on"
    job.play(120, evaluates_on_cpus)
    assert job.told, "ten minutes are more than it ever took"


def test_a_heartbeat_to_a_tracker_is_no_sign_of_life_and_a_line_of_output_is() -> None:
    job = Job()
    job.play(300, trains)
    job.play(60, lambda job: job.look(util=(100.0, 100.0), work=0.2, cpus=1.0, io=150.0))
    assert job.told, "150 KiB/s is a tenth of nothing that it did before"
    job = Job()
    job.play(300, trains)

    def writes(job: Job) -> Look:
        job.written += 10.0
        return hangs(job)

    job.play(600, writes)
    assert job.told == []


def test_a_job_that_never_worked_or_is_at_its_end_does_not_hang() -> None:
    job = Job()
    job.play(1800, rests)
    assert job.told == [], "it was never seen at work"
    job = Job()
    job.play(300, trains)

    def has_let_go(job: Job) -> Look:
        look = rests(job)
        return replace(look, gpus={name: replace(gpu, holds_mib=10.0) for name, gpu in look.gpus.items()})

    job.play(1800, has_let_go)
    assert job.told == [], "its GPUs are free: its script does something else"


def missing() -> Iterator[Callable[[Job], Look]]:
    def without_a_gpu(job: Job) -> Look:
        look = hangs(job)
        return replace(look, gpus={"GPU-0": look.gpus["GPU-0"]})

    def without_work(job: Job) -> Look:
        look = hangs(job)
        return replace(look, gpus={name: replace(gpu, work=None) for name, gpu in look.gpus.items()})

    def without_tasks(job: Job) -> Look:
        return replace(hangs(job), tasks={})

    yield from (without_a_gpu, without_work, without_tasks)


def test_missing_figures_are_no_trouble() -> None:
    for scene in missing():
        job = Job()
        job.play(300, trains)
        job.play(600, scene)
        assert job.told == [], scene.__name__


def test_a_gatherer_that_was_away_makes_no_hang() -> None:
    job = Job()
    job.play(300, trains)
    job.at += 600.0
    job.play(40, hangs)
    assert job.told == [], "what was in between is not known: it counts from here on"


def test_tasks_without_gpus_that_are_all_blocked() -> None:
    job = Job()

    def works(job: Job) -> Look:
        job.written += 1.0
        look = job.look(util=(0, 0), work=0.0, cpus=1.0)
        return replace(look, gpus={}, gpus_held=0)

    def blocked(job: Job) -> Look:
        return replace(job.look(util=(0, 0), work=0.0, cpus=0.0), gpus={}, gpus_held=0)

    job.play(300, works)
    stopped = job.at
    job.play(60, blocked)
    assert job.told[0][0] - stopped < 60.0
