"""Whatever people submit, end, cancel, hold and lose: nothing is held twice, gangs are whole, the journal is the state.

`Scenario` checks `State.validate` after every event; the properties here are what must hold between them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bireme.core.jobs.states import job_reasons
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import HOLDING, ArrayWaiting, Finished, Job, Outcome, Pending, Running
from bireme.core.model.refusals import Refusal
from bireme.core.state.state import State
from bireme.slurm.records.jobs import job_record
from bireme.slurm.records.steps import history_rows
from bireme.testing.scenario import Scenario

CLUSTERS = ("1x4", "3x4", "2x8:h100", "1x4+2x8:h100")
SHAPES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "nodes": st.integers(1, 3),
        "tasks": st.integers(1, 6),
        "cpus": st.integers(1, 4),
        "gpus_per_node": st.integers(1, 4),
        "gres": st.sampled_from(["shard:1", "shard:3", "shard:5", "mps:60"]),
        "time_s": st.sampled_from([60, 600, 6000]),
        "exclusive": st.booleans(),
        "array": st.sampled_from(["0-2", "0-5%2", "1-9:4"]),
        "hold": st.booleans(),
        "requeue": st.booleans(),
        "nice": st.integers(0, 10),
    },
)


class Queue(RuleBasedStateMachine):
    """One cluster, any sequence of what people and machines do to it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Scenario("1x4")
        self.count = 0

    @initialize(cluster=st.sampled_from(CLUSTERS), threads=st.sampled_from([1, 2]), shards=st.sampled_from([0, 4]))
    def build(self, cluster: str, threads: int, shards: int) -> None:
        rules = Settings(requeue_exit=(75,), max_batch_requeue=1, min_job_age_s=500, memory_is_consumable=False)
        self.world = Scenario(cluster, settings=rules, threads_per_core=threads, shard=shards, mps=100 if shards else 0)

    def attempt(self, action: Any, *arguments: Any, **options: Any) -> None:
        """People may ask for anything; a refusal is an answer too."""
        before = len(self.world.journal)
        try:
            action(*arguments, **options)
        except Refusal:
            assert len(self.world.journal) == before

    def chosen(self, data: st.DataObject, phases: tuple[type, ...]) -> str | None:
        jobs = [job for job in self.world.state.jobs.values() if isinstance(job.phase, phases)]
        jobs = [job for job in jobs if not isinstance(job.array, ArrayWaiting)]
        return self.world._label(data.draw(st.sampled_from(jobs))) if jobs else None

    @rule(options=SHAPES)
    def submit(self, options: dict[str, Any]) -> None:
        self.count += 1
        self.attempt(self.world.submit, f"j{self.count}", **options)

    @rule(options=st.lists(SHAPES, min_size=2, max_size=3))
    def submit_het(self, options: list[dict[str, Any]]) -> None:
        self.count += 1
        components = [{key: value for key, value in each.items() if key != "array"} for each in options]
        self.attempt(self.world.submit_het, f"j{self.count}", *components)

    @rule(data=st.data(), code=st.sampled_from([0, 0, 1, 75]))
    def finish(self, data: st.DataObject, code: int) -> None:
        label = self.chosen(data, (Running,))
        if label is not None and "+" not in label:
            self.world.finish(label, code)

    @rule(data=st.data(), action=st.sampled_from(["cancel", "hold", "release", "requeue", "suspend", "resume"]))
    def ask(self, data: st.DataObject, action: str) -> None:
        jobs = list(self.world.labels.values())
        if jobs:
            label = data.draw(st.sampled_from(jobs))
            if "+" not in label:
                self.attempt(getattr(self.world, action), label)

    @rule(data=st.data(), first=st.integers(0, 9), more=st.integers(0, 5))
    def cancel_tasks(self, data: st.DataObject, first: int, more: int) -> None:
        arrays = [self.world.labels[array] for array in self.world.state.array_members]
        if arrays:
            label = f"{data.draw(st.sampled_from(arrays))}_[{first}-{first + more}]"
            self.attempt(self.world.cancel, label)

    @rule(data=st.data(), state=st.sampled_from(["DRAIN", "DOWN", "RESUME"]))
    def operate(self, data: st.DataObject, state: str) -> None:
        self.world.node(data.draw(st.sampled_from(list(self.world.state.nodes))), state)

    @rule(data=st.data(), knows=st.booleans())
    def node_goes_and_comes(self, data: st.DataObject, knows: bool) -> None:
        node = data.draw(st.sampled_from(list(self.world.state.nodes)))
        self.world.lose(node)
        self.world.comes_back(node, knows=knows)

    @rule(seconds=st.sampled_from([0, 30, 600]))
    def wait(self, seconds: int) -> None:
        self.world.wait(seconds)

    @invariant()
    def the_state_is_valid(self) -> None:
        self.world.state.validate()

    @invariant()
    def whoever_ends_while_it_waits_has_the_record_of_any_other_end(self) -> None:
        """Many that are cancelled together share most of a record; it is made as any other is."""
        state, now = self.world.state, self.world.now
        for job in list(state.pending.values())[:2]:
            ended = Finished(Outcome("CANCELLED", by_uid=7, reason=job_reasons(state, job)[0]), now)
            record = history_rows(state, job, ended, now)[0].whole
            assert record == job_record(state, job, now, phase=ended)
            assert list(record) == list(job_record(state, job, now, phase=ended))

    @invariant()
    def gangs_are_whole(self) -> None:
        for job in self.world.state.holding.values():
            assert_whole(job)

    @invariant()
    def heterogeneous_jobs_hold_all_or_nothing(self) -> None:
        for members in self.world.state.het_members.values():
            jobs = [self.world.state.jobs[member] for member in members]
            started = [job.generation > 0 for job in jobs if not isinstance(job.phase, Pending)]
            assert not any(started) or all(started) or any(job.phase.__class__ not in HOLDING for job in jobs)

    @invariant()
    def every_waiting_job_says_why(self) -> None:
        self.world.settle()
        for label, text in self.world.described().items():
            assert text != "waits ", label
            assert text != "waits None", f"{label} was not looked at: {self.world.state.verdicts}"

    def teardown(self) -> None:
        assert_equal(self.world.replayed(), self.world.state)


def assert_whole(job: Job) -> None:
    allocation = job.allocation
    assert allocation is not None
    asked = job.spec.resources
    names = allocation.node_names
    assert len(set(names)) == len(names)
    if asked.nodes_given:
        wanted = asked.nodes_min if asked.ntasks is None else min(asked.nodes_min, asked.ntasks)
        assert len(names) == wanted, f"{job.label}: {names}, asked for {wanted}"
    if asked.ntasks is not None:
        assert sum(share.tasks for share in allocation.shares) == asked.ntasks
    for share in allocation.shares:
        assert len(set(share.cpu_ids)) == share.cpus >= 1
        assert share.cpus >= share.tasks * (asked.cpus_per_task or 1)
        for gres in asked.gres_per_node:
            assert asked.exclusive or share.gres_count(gres.name) == gres.count


def assert_equal(one: State, other: State) -> None:
    """Everything but what a plan says anew each time and what is only remembered for speed."""
    for name in ("nodes", "partitions", "jobs", "arrays", "next_job_id", "submissions", "seq", "loss", "shelves"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("pending", "holding", "finished", "array_members", "het_members"):
        assert getattr(one, name) == getattr(other, name), name
    assert one.occupancy.rooms == other.occupancy.rooms


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)


@given(st.lists(SHAPES, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_snapshot_that_is_reindexed_is_the_same_state(shapes: list[dict[str, Any]]) -> None:
    world = Scenario("3x8:h100")
    for number, options in enumerate(shapes):
        try:
            world.submit(f"j{number}", **options)
        except Refusal:
            continue
    world.settle()
    read_back = world.replayed()
    read_back.reindex()
    assert_equal(read_back, world.state)
