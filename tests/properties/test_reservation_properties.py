"""What must hold whatever is reserved: nobody is on a node, or promised one, that is set aside for others then."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Job, Running
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Refusal
from bireme.core.model.reservations import Reservation, ReservationFlag
from bireme.core.reservations.orders import ReservationOrder, create_reservation
from bireme.core.reservations.reserving import may_use
from bireme.testing.scenario import Scenario, caller_named

SETTINGS = Settings(memory_is_consumable=False, policy=Policy(resolution_s=0.0))
MINUTE = 60

reservations = st.lists(
    st.fixed_dictionaries(
        {
            "begin": st.integers(0, 20),
            "lasts": st.integers(1, 20),
            "nodes": st.sets(st.sampled_from(["n1", "n2", "n3"]), min_size=1),
            "users": st.sampled_from([("alice",), ("bob",), ("-alice",)]),
            "flags": st.lists(st.sampled_from(["MAGNETIC", "OVERLAP", "FLEX", "HOURLY"]), max_size=2, unique=True),
        }
    ),
    max_size=3,
)
jobs = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.sampled_from(["alice", "bob"]),
            "nodes": st.integers(1, 3),
            "cpus": st.integers(1, 4),
            "time_s": st.integers(1, 30).map(lambda minutes: minutes * MINUTE),
            "within": st.sampled_from(["", "r0", "r1"]),
        }
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(reservations, jobs, st.lists(st.integers(1, 15), max_size=4))
def test_reserved_nodes_are_kept_for_their_users(
    wanted: list[dict[str, Any]], queue: list[dict[str, Any]], waits: list[int]
) -> None:
    world = Scenario("3x4", settings=SETTINGS)
    half = len(queue) // 2
    submit(world, queue[:half], 0)
    world.settle()
    for number, asked in enumerate(wanted):
        reserve(world, f"r{number}", asked)
    submit(world, queue[half:], half)
    check(world)
    for minutes in waits:
        world.wait(minutes * MINUTE)
        check(world)


def reserve(world: Scenario, name: str, asked: dict[str, Any]) -> None:
    begin = world.now + asked["begin"] * MINUTE
    order = ReservationOrder(
        begin=begin,
        end=begin + asked["lasts"] * MINUTE,
        nodes=tuple(sorted(asked["nodes"])),
        users=asked["users"],
        flags=tuple(asked["flags"]),
    )
    with suppress(Refusal):  # busy, or overlapping another
        world.record(create_reservation(world.state, caller_named("root"), name, order, world.now))


def submit(world: Scenario, queue: Sequence[dict[str, Any]], first: int) -> None:
    for number, request in enumerate(queue, start=first):
        words = dict(request)
        with suppress(Refusal):  # no such reservation, or not for this user
            world.submit(f"job{number}", reservation=words.pop("within"), **words)


def check(world: Scenario) -> None:
    world.settle()
    for job in world.state.holding.values():
        if isinstance(job.phase, Running) and job.phase.started_at == world.now:
            end = world.now + (job.spec.time_limit_s or 0)
            assert_open(world, job, job.phase.allocation.node_names, world.now, end)
    assert world.outlook is not None
    for job_id, bookings in world.outlook.bookings.items():
        for booking in bookings:
            nodes = [share.node for share in booking.shares]
            assert_open(world, world.state.jobs[job_id], nodes, booking.begin, booking.end)


def assert_open(world: Scenario, job: Job, nodes: Sequence[str], begin: float, end: float) -> None:
    own = world.state.reservations.get(job.spec.reservation)
    if own is not None and not own.has(ReservationFlag.FLEX):
        assert set(nodes) <= set(own.nodes), "a job in a reservation uses its nodes only"
        return
    for reservation in world.state.reservations.values():
        if reservation.begin < end and begin < reservation.end and not opens(world, reservation, job):
            assert not set(nodes) & set(reservation.nodes), f"{job.label} on nodes of {reservation.name}"


def opens(world: Scenario, reservation: Reservation, job: Job) -> bool:
    if job.spec.reservation:
        return reservation.name == job.spec.reservation
    return reservation.has(ReservationFlag.MAGNETIC) and may_use(world.state, reservation, job.spec)
