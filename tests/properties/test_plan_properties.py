"""What must hold for every plan, whatever the queue: nothing over-committed, gangs whole, nobody before delayed."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import combinations_with_replacement, product
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bireme.core.accounting.book import AccountBook
from bireme.core.calendar.booking import Booking
from bireme.core.calendar.calendar import Calendar
from bireme.core.lifecycle.apply import apply
from bireme.core.model.cluster import NodeConfig, Settings
from bireme.core.model.events import ClusterConfigured, NodeRegistered, Recorded
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending, ResourceRequest, Suspended
from bireme.core.model.policy import Policy, Preemption
from bireme.core.model.resources import Allocation, Device, GresPool, GresRequest, GresShare, NodeShare
from bireme.core.placement.demand import resolve
from bireme.core.placement.fabric import build_fabric
from bireme.core.placement.occupancy import Occupancy
from bireme.core.placement.search import Search
from bireme.core.plan.decisions import Preempt, Start
from bireme.core.plan.planner import plan
from bireme.core.plan.seniority import tier
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.standby import before_it
from bireme.core.plan.work import look_anew
from bireme.core.state.state import State
from bireme.testing.scenario import Scenario
from bireme.testing.worlds import build_cluster

SETTINGS = Settings(memory_is_consumable=False, policy=Policy(resolution_s=0.0))

requests = st.fixed_dictionaries(
    {
        "nodes": st.integers(1, 3),
        "gpus_per_node": st.integers(1, 4),
        "time_s": st.sampled_from([100, 200, 300, 700]),
    },
    optional={"time_min_s": st.just(60)},
)
queues = st.lists(requests, min_size=1, max_size=8)


def started(world: Scenario) -> dict[str, str]:
    return {label: text for label, text in world.described().items() if text.startswith("runs")}


def expected_starts(world: Scenario) -> dict[int, float | None]:
    snapshot = Snapshot(world.state, world.state.config.settings.policy, world.now)
    decided = plan(snapshot, look_anew(snapshot, world.promises))
    return {job_id: verdict.expected_start for job_id, verdict in decided.verdicts.items()}


@settings(max_examples=50, deadline=None)
@given(queues)
def test_nothing_is_over_committed_and_gangs_are_whole(queue: list[dict[str, int]]) -> None:
    world = Scenario("3x4:h100", settings=SETTINGS)
    for number, request in enumerate(queue):
        world.submit(f"job{number}", **request)
    world.settle()  # validates the state after every event
    for number, request in enumerate(queue):
        allocation = world.job(f"job{number}").allocation
        if allocation is not None:
            assert len(allocation.shares) == request["nodes"]
            assert all(share.gres_count("gpu") == request["gpus_per_node"] for share in allocation.shares)


@settings(max_examples=50, deadline=None)
@given(queues, queues)
def test_nobody_is_delayed_by_those_behind(before: list[dict[str, int]], behind: list[dict[str, int]]) -> None:
    """The slots of a queue are the same, or earlier, when more jobs come behind it."""
    alone, together = (Scenario("3x4:h100", settings=SETTINGS) for _ in range(2))
    for world in (alone, together):
        for number, request in enumerate(before):
            world.submit(f"job{number}", **request)
    for number, request in enumerate(behind):
        together.submit(f"later{number}", **request)
    alone.settle()
    together.settle()
    assert started(alone).keys() <= started(together).keys()
    slots, crowded = expected_starts(alone), expected_starts(together)
    for job_id, slot in slots.items():
        assert crowded.get(job_id) == slot, f"job {job_id} was promised {slot}, now {crowded.get(job_id)}"


@settings(max_examples=40, deadline=None)
@given(queues)
def test_every_waiting_job_has_a_reason_and_the_same_state_gives_the_same_plan(queue: list[dict[str, int]]) -> None:
    world = Scenario("3x4:h100", settings=SETTINGS)
    for number, request in enumerate(queue):
        world.submit(f"job{number}", **request)
    first, second = (plan(Snapshot(world.state, SETTINGS.policy, world.now)) for _ in range(2))
    assert first.starts == second.starts
    assert first.verdicts == second.verdicts
    starting = {decision.job_id for decision in first.starts if hasattr(decision, "job_id")}
    assert world.state.pending.keys() == starting | first.verdicts.keys()
    assert all(verdict.reasons for verdict in first.verdicts.values())


@settings(max_examples=40, deadline=None)
@given(queues, queues)
def test_a_pass_changes_nothing_that_it_reads(queue: list[dict[str, int]], more: list[dict[str, int]]) -> None:
    """Neither a full one nor one that goes on from it: what it works out is its own, or the outlook's."""
    world = Scenario("3x4:h100", settings=SETTINGS)
    for number, request in enumerate(queue):
        world.submit(f"job{number}", **request)
    world.settle()
    for number, request in enumerate(more):
        world.submit(f"later{number}", **request)
    before = contents(world.state)
    plan(Snapshot(world.state, SETTINGS.policy, world.now), world.outlook)
    plan(Snapshot(world.state, SETTINGS.policy, world.now))
    assert contents(world.state) == before


def contents(state: State) -> dict[str, object]:
    """All of a state, byte by byte; the account book remembers answers of its own, and is compared by its content."""
    return {
        each.name: value if isinstance(value := getattr(state, each.name), AccountBook) else pickle.dumps(value)
        for each in fields(state)
    }


@settings(max_examples=40, deadline=None)
@given(queues, st.lists(requests, min_size=1, max_size=3))
def test_victims_are_few_and_all_of_them_help(low: list[dict[str, int]], high: list[dict[str, int]]) -> None:
    rules = Settings(
        memory_is_consumable=False, policy=Policy(resolution_s=0.0, preemption=Preemption("partition", "REQUEUE"))
    )
    tiers = {"low": {"priority_tier": 1}, "high": {"priority_tier": 9}}
    world = Scenario("3x4:h100", settings=rules, partitions=tiers)
    for number, request in enumerate(low):
        world.submit(f"low{number}", **request)
    world.settle()
    running = set(started(world))
    for number, request in enumerate(high):
        world.submit(f"high{number}", **request, partition="high")
    world.settle()
    evicted = running - set(started(world))
    fits_whole = any(world.job(f"high{number}").allocation is not None for number in range(len(high)))
    assert not evicted or fits_whole, "jobs were ended and nobody of those they made way for runs"


TIERS = {"low": {"priority_tier": 1}, "mid": {"priority_tier": 5}, "high": {"priority_tier": 9}}
suspendable = st.fixed_dictionaries(
    {
        "partition": st.sampled_from(list(TIERS)),
        "nodes": st.integers(1, 2),
        "cpus": st.integers(1, 4),
        "time_s": st.sampled_from([100, 300, 700]),
    },
    optional={"gpus_per_node": st.integers(1, 4), "exclusive": st.just(True)},
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(suspendable, st.booleans()), min_size=2, max_size=9))
def test_a_job_is_suspended_only_while_a_senior_uses_its_cpus(steps: list[tuple[dict[str, object], bool]]) -> None:
    """Jobs come, and the oldest that runs may end. The scenario fails where jobs stop and go on without end."""
    rules = Policy(resolution_s=0.0, preemption=Preemption("partition", "SUSPEND"))
    world = Scenario("2x4:h100", settings=Settings(memory_is_consumable=False, policy=rules), partitions=TIERS)
    for number, (request, one_ends) in enumerate(steps):
        world.submit(f"job{number}", **request)
        world.settle()
        assert_seniors_use_the_cpus(world)
        if one_ends and (running := started(world)):
            world.finish(next(iter(running)))
            world.settle()
            assert_seniors_use_the_cpus(world)
    for _ in steps:
        if running := started(world):
            world.finish(next(iter(running)))
            world.settle()
    assert not any(isinstance(job.phase, Suspended) for job in world.state.jobs.values())


def assert_seniors_use_the_cpus(world: Scenario) -> None:
    holding = list(world.state.holding.values())
    for job in holding:
        if isinstance(job.phase, Suspended):
            seniors = [
                other for other in before_it(world.state, job) if tier(world.state, other) > tier(world.state, job)
            ]
            assert seniors or job.phase.allocation.whole_nodes, f"{world.described()}"


# -- the calendar against a brute-force one --------------------------------------------------------------------------

DEVICES = tuple(Device(index, "h100") for index in range(4))
NODES = tuple(NodeConfig(name=f"n{number}", cpus=4, gres=(GresPool("gpu", "h100", 4, DEVICES),)) for number in range(2))
pieces = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4), st.integers(1, 12), st.integers(1, 12)), max_size=5)


def sized(node: int, gpus: int) -> NodeShare:
    return NodeShare(f"n{node}", gpus, 0, (), (GresShare("gpu", "h100", gpus),))


def free_at(
    moment: int, running: Iterable[tuple[int, int, int]], booked: Iterable[tuple[int, int, int, int]]
) -> list[int]:
    left = [4, 4]
    for node, gpus, end in running:
        if moment < end:
            left[node] -= gpus
    for node, gpus, begin, end in booked:
        if begin <= moment < end:
            left[node] -= gpus
    return left


@settings(max_examples=200, deadline=None)
@given(pieces, pieces, st.integers(1, 2), st.integers(1, 4), st.integers(1, 10), st.booleans())
def test_the_calendar_equals_a_brute_force_one(
    running_drawn: list[tuple[int, int, int, int]],
    booked_drawn: list[tuple[int, int, int, int]],
    nodes: int,
    gpus: int,
    duration: int,
    of_the_job: bool,
) -> None:
    """`of_the_job`: --gpus, not --gpus-per-node, where one node gives all of them."""
    running, booked = possible(running_drawn, booked_drawn)
    occupancy = Occupancy(NODES)
    free = occupancy.free.copy()
    allocations = []
    for number, (node, count, end) in enumerate(running):
        free.add(node, sized(node, count), 1, -1, False)
        allocations.append((float(end), Allocation(number, 1, "main", (sized(node, count),))))
    calendar = Calendar(occupancy.table, 0.0, allocations)
    for node, count, begin, end in booked:
        calendar.book(Booking(float(begin), float(end), (sized(node, count),)))
    config = build_cluster("2x4:h100")
    whose = "gres_per_job" if of_the_job and nodes == 1 else "gres_per_node"
    asked = replace(
        ResourceRequest(nodes_min=nodes, nodes_max=nodes, nodes_given=True),
        **{whose: (GresRequest("gpu", None, gpus),)},
    )
    spec = JobSpec(owner=Owner(uid=1, gid=1, user="u"), resources=asked)
    demand = resolve(spec, config.partitions[0], SETTINGS)
    allowed = occupancy.table.mask(["n0", "n1"])
    search = Search(demand, allowed, occupancy.table, build_fabric(config.topology, NODES), SETTINGS)
    by_hand = brute_force(running, booked, nodes, gpus, duration)
    for by_columns in (False, True):
        found = calendar.earliest(search, free, float(duration), 0.0, 100.0, by_columns=by_columns)
        assert found is not None
        assert found[0] == by_hand
    if booked:  # what it had found out about the node of a slot is found out again when the slot goes
        node, count, begin, end = booked.pop()
        calendar.unbook(Booking(float(begin), float(end), (sized(node, count),)))
        found = calendar.earliest(search, free, float(duration), 0.0, 100.0)
        assert found is not None
        assert found[0] == brute_force(running, booked, nodes, gpus, duration)
    now = calendar.nodes_now(search, free, float(duration))
    assert now is not None
    held = [all(free_at(at, running, booked)[node] >= gpus for at in range(duration)) for node in range(2)]
    assert now.tolist() == held


def possible(
    running_drawn: list[tuple[int, int, int, int]], booked_drawn: list[tuple[int, int, int, int]]
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int, int]]]:
    """What was drawn, less what would over-commit a node."""
    running: list[tuple[int, int, int]] = []
    for node, gpus, end, _ in running_drawn:
        if free_at(0, running, [])[node] >= gpus:
            running.append((node, gpus, end))
    booked: list[tuple[int, int, int, int]] = []
    for node, gpus, begin, length in booked_drawn:
        if all(free_at(moment, running, booked)[node] >= gpus for moment in range(begin, begin + length)):
            booked.append((node, gpus, begin, begin + length))
    return running, booked


def brute_force(
    running: list[tuple[int, int, int]],
    booked: list[tuple[int, int, int, int]],
    nodes: int,
    gpus: int,
    duration: int,
) -> int:
    for begin in range(100):
        able = [
            node
            for node in range(2)
            if all(free_at(moment, running, booked)[node] >= max(gpus, 1) for moment in range(begin, begin + duration))
        ]
        if len(able) >= nodes:
            return begin
    raise AssertionError("it never fits")


@settings(max_examples=40, deadline=None)
@given(queues, st.lists(st.tuples(requests, st.booleans()), max_size=6))
@example(
    queue=[
        {"nodes": 3, "gpus_per_node": 2, "time_s": 700},
        {"nodes": 1, "gpus_per_node": 4, "time_s": 200},
        {"nodes": 2, "gpus_per_node": 2, "time_s": 100},
        {"nodes": 2, "gpus_per_node": 1, "time_s": 700},
    ],
    steps=[({"nodes": 1, "gpus_per_node": 1, "time_s": 100}, True)],
)  # the last starts elsewhere than in its slot, which was in the way of the second
def test_a_small_pass_overlooks_nobody(queue: list[dict[str, int]], steps: list[tuple[dict[str, int], bool]]) -> None:
    """After it, a look at every waiting job with the same slots starts nobody more."""
    world = Scenario("3x4:h100", settings=SETTINGS)
    for number, request in enumerate(queue):
        world.submit(f"job{number}", **request)
    world.settle()
    for number, (request, ends) in enumerate(steps):
        running = started(world)
        if ends and running:
            world.finish(next(iter(running)))
        else:
            world.submit(f"later{number}", **request)
        world._pass()
        world.deliver()
        outlook = world.outlook
        if outlook is None:
            world.settle()
            continue
        outlook.freed = set(range(3))
        outlook.again.update(world.state.pending)
        again = plan(Snapshot(world.state, SETTINGS.policy, world.now), outlook, renew=False)
        assert not again.starts
        world.settle()


# -- victims ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 4)), min_size=1, max_size=8), requests)
def test_with_any_victim_left_out_the_job_would_not_fit(low: list[tuple[int, int]], high: dict[str, int]) -> None:
    rules = Policy(resolution_s=0.0, preemption=Preemption("partition", "CANCEL"))
    world = Scenario("3x4:h100", settings=Settings(memory_is_consumable=False, policy=rules), partitions=TIERS)
    for number, (nodes, gpus) in enumerate(low):
        world.submit(f"low{number}", nodes=nodes, gpus_per_node=gpus, time_s=700)
    world.settle()
    world.submit("high", **high, partition="high")
    decided = plan(Snapshot(world.state, rules, world.now))
    victims = {victim.job_id for each in decided.starts if isinstance(each, Preempt) for victim in each.victims}
    if victims:
        assert fits_without(world, victims, high)
        for spared in victims:
            assert not fits_without(world, victims - {spared}, high), f"{spared} is ended for nothing"
    elif not any(isinstance(each, Start) for each in decided.starts):
        everybody = set(world.state.holding)
        assert not everybody or not fits_without(world, everybody, high), "somebody could have made way"


def fits_without(world: Scenario, gone: set[int], high: dict[str, int]) -> bool:
    left = {f"n{number}": 4 for number in (1, 2, 3)}
    for job in world.state.holding.values():
        if job.id not in gone:
            for share in job.held.shares:
                left[share.node] -= share.gres_count("gpu")
    return sum(free >= high["gpus_per_node"] for free in left.values()) >= high["nodes"]


# -- the order of nodes ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([2, 4, 8]), min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 8)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_order_of_nodes_changes_nothing_but_ties(
    sizes: list[int], queue: list[tuple[int, int]], shuffled: Random
) -> None:
    """The same nodes in another order: the same jobs start, on as large parts of as many nodes."""
    other = sizes.copy()
    shuffled.shuffle(other)
    decided = [started_on(nodes, queue) for nodes in (sizes, other)]
    assert decided[0] == decided[1]


def started_on(sizes: Sequence[int], queue: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
    """job -> what its nodes have left after it, in order of size."""
    state = world_of(sizes)
    left = {f"n{number}": size for number, size in enumerate(sizes, start=1)}
    found: dict[int, list[int]] = {}
    for decision in plan(Snapshot(with_jobs(state, queue), SETTINGS.policy, 0.0)).starts:
        assert isinstance(decision, Start)
        for share in decision.shares:
            left[share.node] -= share.gres_count("gpu")
        found[decision.job_id] = sorted(left[share.node] for share in decision.shares)
    return found


# -- small worlds, all of them ---------------------------------------------------------------------------------------


@cache
def spec_of(nodes: int, gpus: int) -> JobSpec:
    asked = ResourceRequest(
        nodes_min=nodes, nodes_max=nodes, nodes_given=True, gres_per_node=(GresRequest("gpu", None, gpus),)
    )
    owner = Owner(uid=1, gid=1, user="u")
    return JobSpec(owner=owner, resources=asked, partitions=("main",), time_limit_s=100, time_limit_given=True)


def world_of(sizes: Sequence[int]) -> State:
    """Nodes with so many GPUs each, and nothing on them."""
    state = State()
    config = replace(build_cluster("+".join(f"1x{size}:h100" for size in sizes)), settings=SETTINGS)
    apply(state, Recorded(1, 0.0, "test", ClusterConfigured(config)))
    for number in range(1, len(sizes) + 1):
        apply(state, Recorded(number + 1, 0.0, "test", NodeRegistered(f"n{number}", 0.0)))
    return state


def with_jobs(state: State, queue: Sequence[tuple[int, int]]) -> State:
    """Of (nodes, GPUs on each), in the order of the queue."""
    jobs = {
        number: Job(number, spec_of(*shape), 0.0, Pending(since=0.0, eligible_at=0.0), priority=100 - number)
        for number, shape in enumerate(queue, start=1)
    }
    return replace(state, jobs=jobs, pending=jobs)


SMALL_CLUSTERS = [sizes for count in (1, 2, 3) for sizes in combinations_with_replacement((1, 2, 3, 4), count)]
"""How many GPUs each node has: up to 3 nodes with up to 4 each."""


def queues_of_three(sizes: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """Every queue of three jobs that could run there."""
    able = {nodes: sorted(sizes, reverse=True)[nodes - 1] for nodes in range(1, len(sizes) + 1)}
    shapes = [(nodes, gpus) for nodes, most in able.items() for gpus in range(1, most + 1)]
    return list(product(shapes, repeat=3))


@pytest.mark.parametrize("sizes", SMALL_CLUSTERS, ids=str)
def test_all_queues_of_three_jobs_on_all_small_clusters(sizes: Sequence[int]) -> None:
    """Nodes in one order. Time limits are equal, so that nobody who starts now delays a slot: a job starts exactly if
    it fits beside those before it. The first that does not fit gets the slot at which these have ended."""
    state = world_of(sizes)
    for queue in queues_of_three(sizes):
        assert_who_starts_is_who_fits(state, sizes, queue)


def test_these_are_all() -> None:
    assert sum(len(queues_of_three(sizes)) for sizes in SMALL_CLUSTERS) == 12_600


def assert_who_starts_is_who_fits(state: State, sizes: Sequence[int], queue: Sequence[tuple[int, int]]) -> None:
    decided = plan(Snapshot(with_jobs(state, queue), SETTINGS.policy, 0.0))
    starts = {decision.job_id: decision.shares for decision in decided.starts if isinstance(decision, Start)}
    left = {f"n{number}": size for number, size in enumerate(sizes, start=1)}
    waited = False
    for number, (nodes, gpus) in enumerate(queue, start=1):
        fits = sum(free >= gpus for free in left.values()) >= nodes
        assert fits == (number in starts), f"{queue} on {sizes}: job {number}"
        for share in starts.get(number, ()):
            left[share.node] -= share.gres_count("gpu")
            assert left[share.node] >= 0
        if number in starts:
            assert len({share.node for share in starts[number]}) == nodes
        elif not waited:
            waited = True
            assert decided.verdicts[number].expected_start == 100.0, f"{queue} on {sizes}: job {number}"
