"""Whatever mix of whole GPUs, shards and MPS shares is asked for: no GPU is given out more than once over."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import Running
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Refusal
from bireme.core.plan.planner import plan
from bireme.core.plan.snapshot import Snapshot
from bireme.core.plan.work import look_anew
from bireme.testing.scenario import Scenario

PARTS = {"shard": 4, "mps": 100}
GRES = (
    "gpu:1",
    "gpu:2",
    "gpu:3",
    "shard:1",
    "shard:2",
    "shard:3",
    "shard:4",
    "shard:7",
    "mps:30",
    "mps:100",
    "mps:150",
)
jobs = st.fixed_dictionaries(
    {"gres": st.sampled_from(GRES), "time_s": st.sampled_from([60, 120, 600])},
    optional={"nodes": st.integers(1, 2), "exclusive": st.booleans()},
)
ends = st.integers(0, 30)


def fractions_in_use(world: Scenario) -> dict[tuple[str, int], dict[str, Fraction]]:
    """(node, GPU) -> as what it is in use -> how much of it."""
    used: dict[tuple[str, int], dict[str, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for job in world.state.holding.values():
        assert job.allocation is not None
        for share in job.allocation.shares:
            for gres in share.gres:
                assert gres.count == len(gres.indices) + sum(count for _, count in gres.parts)
                for gpu in gres.indices:
                    used[share.node, gpu][gres.name] += 1
                for gpu, count in gres.parts:
                    used[share.node, gpu][gres.name] += Fraction(count, PARTS[gres.name])
    return used


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(jobs, ends), min_size=2, max_size=25), st.booleans())
def test_no_gpu_is_over_committed(actions: list[dict[str, object] | int], one_sharing: bool) -> None:
    single = ("mps",) if one_sharing else ()
    world = Scenario("2x3:h100", one_sharing=single, **PARTS)
    for number, action in enumerate(actions):
        running = [job for job in world.state.jobs.values() if isinstance(job.phase, Running)]
        if isinstance(action, int):
            if running:
                world.finish(world.labels[running[action % len(running)].id])
        else:
            with suppress(Refusal):  # more than the one GPU that may be shared has
                world.submit(f"j{number}", **action)
        world.settle()
        world.state.validate()
        for kinds in fractions_in_use(world).values():
            assert len(kinds) == 1
            assert sum(kinds.values()) <= 1
        through_mps = [node for (node, _), kinds in fractions_in_use(world).items() if "mps" in kinds]
        assert not one_sharing or len(through_mps) == len(set(through_mps))
    free = world.state.occupancy.free
    for position, room in enumerate(world.state.occupancy.rooms):
        assert free.gres_of("gpu", None)[position] == room.devices["gpu", "h100"].bit_count()
        for kind, each in PARTS.items():
            left = room.parts_left((kind, "h100"), dict.fromkeys(range(3), each), kind in single)
            together = max(left.values(), default=0) if kind in single else sum(left.values())
            assert free.gres_of(kind, None)[position] == together
            assert free.most_at_once(kind, None)[position] == max(left.values(), default=0)


@settings(max_examples=40, deadline=None)
@given(st.lists(jobs, min_size=2, max_size=10), st.sampled_from([(), ("mps",), ("mps", "shard")]))
def test_the_job_at_the_head_starts_no_later_than_it_was_promised(
    queue: list[dict[str, object]], single: tuple[str, ...]
) -> None:
    rules = Settings(memory_is_consumable=False, policy=Policy(resolution_s=0.0))
    world = Scenario("2x3:h100", settings=rules, one_sharing=single, **PARTS)
    for number, options in enumerate(queue):
        with suppress(Refusal):
            world.submit(f"j{number}", **options)
    world.settle()
    assert world.outlook is not None
    waiting = [job for job in world.state.pending.values() if job.id in world.outlook.bookings]
    if not waiting:
        return
    head = min(waiting, key=lambda job: job.id)
    promised = world.outlook.bookings[head.id][0].begin
    world.wait(promised - world.now + 1)
    world.settle()
    assert head.id not in world.state.pending


@settings(max_examples=40, deadline=None)
@given(st.lists(jobs, min_size=1, max_size=6), st.lists(jobs, min_size=1, max_size=6))
def test_nobody_is_delayed_by_those_behind(before: list[dict[str, object]], behind: list[dict[str, object]]) -> None:
    """By a score that expects no work: else those behind have others put elsewhere, who may then start sooner."""
    rules = Settings(memory_is_consumable=False, policy=Policy(resolution_s=0.0, placement="bestfit"))
    alone, together = (Scenario("2x3:h100", settings=rules, **PARTS) for _ in range(2))
    for world in (alone, together):
        for number, options in enumerate(before):
            world.submit(f"j{number}", **options)
    for number, options in enumerate(behind):
        together.submit(f"later{number}", **options)
    slots = []
    for world in (alone, together):
        world.settle()
        snapshot = Snapshot(world.state, rules.policy, world.now)
        decided = plan(snapshot, look_anew(snapshot, world.promises))
        slots.append({job_id: verdict.expected_start for job_id, verdict in decided.verdicts.items()})
    for job_id, slot in slots[0].items():
        assert slots[1].get(job_id) == slot
