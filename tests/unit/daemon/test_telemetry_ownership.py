"""Which jobs have which GPUs, followed through starts, ends, restarts and GPUs that are known late."""

from __future__ import annotations

from dataclasses import replace

from bireme.core.telemetry.attribution import Card, number_of
from bireme.daemon.telemetry.ownership import Ownership
from bireme.ports import Holding
from bireme.testing.scenario import Scenario


class Followed:
    """A scenario of a node with two GPUs, and who has them by an `Ownership`."""

    def __init__(self) -> None:
        self.world = Scenario("1x2:h100")
        (node,) = self.world.state.nodes.values()
        (pool,) = node.config.gres
        devices = tuple(replace(device, file=f"/dev/nvidia{device.index}") for device in pool.devices)
        node.config = replace(node.config, gres=(replace(pool, devices=devices),))
        self.ownership = Ownership(())
        self._seen = 0

    @property
    def node(self) -> str:
        return next(iter(self.world.state.nodes))

    def know(self) -> None:
        self.ownership.cards = (Card(self.node, "GPU-0", 0), Card(self.node, "GPU-1", 1))

    def changes(self) -> list[Holding]:
        self.world.settle()
        since, self._seen = self._seen, len(self.world.journal)
        events = self.world.journal[since:]
        return self.ownership.changes_after(self.world.state, events, self.world.now)


def test_a_job_has_its_gpus_from_its_start_to_its_end() -> None:
    followed = Followed()
    followed.know()
    world = followed.world
    job = world.submit("train", gpus=2)
    began = world.now
    opened = followed.changes()
    assert {each.uuid for each in opened} == {"GPU-0", "GPU-1"}
    assert {(each.job_id, each.generation, each.shared, each.start, each.end) for each in opened} == {
        (job, 1, False, began, None)
    }
    assert followed.ownership.owners() == {(followed.node, "GPU-0"): (job,), (followed.node, "GPU-1"): (job,)}
    world.now = began + 50
    world.finish("train")
    assert followed.changes() == [replace(each, end=began + 50) for each in opened]
    assert followed.ownership.owners() == {}


def test_nothing_is_written_twice() -> None:
    followed = Followed()
    followed.know()
    followed.world.submit("train", gpus=1)
    assert followed.changes()
    followed.world.suspend("train")
    assert followed.changes() == []


def test_gpus_that_become_known_later_were_the_jobs_from_its_start() -> None:
    followed = Followed()
    world = followed.world
    world.submit("train", gpus=1)
    began = world.now
    assert followed.changes() == []
    world.now = began + 100
    followed.know()
    (opened,) = followed.ownership.all_changes(world.state, world.now)
    assert opened.start == began


def test_a_daemon_that_comes_back_ends_what_ended_without_it() -> None:
    followed = Followed()
    followed.know()
    world = followed.world
    world.submit("train", gpus=1)
    (opened,) = followed.changes()
    world.finish("train")
    world.settle()
    again = Ownership([opened])
    assert again.all_changes(world.state, world.now) == [replace(opened, end=world.now)]


def test_a_daemon_that_comes_back_before_any_gatherer_leaves_jobs_their_gpus() -> None:
    followed = Followed()
    followed.know()
    world = followed.world
    job = world.submit("train", gpus=1)
    (opened,) = followed.changes()
    again = Ownership([opened])
    world.now += 10
    assert again.all_changes(world.state, world.now) == [], "no gatherer has told which GPUs there are"
    again.cards = followed.ownership.cards
    assert again.all_changes(world.state, world.now) == []
    assert again.owners() == {(followed.node, opened.uuid): (job,)}


def test_a_gpu_that_its_driver_loses_and_finds_is_the_jobs_again() -> None:
    followed = Followed()
    followed.know()
    world = followed.world
    world.submit("train", gpus=2)
    _, second = sorted(followed.changes(), key=lambda each: each.uuid)
    both, world.now = followed.ownership.cards, world.now + 10
    followed.ownership.cards = both[:1]
    ended = replace(second, end=world.now)
    assert followed.ownership.all_changes(world.state, world.now) == [ended]
    followed.ownership.cards = both
    assert followed.ownership.all_changes(world.state, world.now + 5) == [second]


def test_a_job_that_is_started_again_has_another_holding() -> None:
    followed = Followed()
    followed.know()
    world = followed.world
    job = world.submit("train", gpus=1, requeue=True)
    (first,) = followed.changes()
    world.now += 10
    world.requeue("train")
    later = followed.changes()
    assert replace(first, end=world.now) in later
    assert [each.generation for each in later if each.end is None] == [2], f"job {job} runs again"


def test_slurms_number_of_a_gpu_leads_to_it_where_slurmd_says_its_file() -> None:
    followed = Followed()
    world = followed.world
    (node,) = world.state.nodes.values()
    (pool,) = node.config.gres
    only_counted = tuple(replace(device, file=None) for device in pool.devices)
    node.config = replace(node.config, gres=(replace(pool, devices=only_counted),))
    job = world.submit("train", gpus=1)
    assert followed.changes() == [], "a GPU that is only counted is nobody's"
    files = ("/dev/nvidia2", "/dev/nvidia5")
    followed.ownership.cards = tuple(
        Card(node.config.name, f"GPU-{minor}", minor, number_of(minor, files)) for minor in (0, 2, 5)
    )
    opened = followed.ownership.all_changes(world.state, world.now)
    assert [(each.job_id, each.uuid) for each in opened] == [(job, "GPU-2")]


def test_a_file_that_is_no_gpus_has_no_number() -> None:
    assert [number_of(minor, ("/dev/nvidia1", "/elsewhere/nvidia0")) for minor in (0, 1, None)] == [None, 0, None]
