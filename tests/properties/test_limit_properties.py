"""Whatever is submitted and ends, and in whatever order: no limit is ever exceeded."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.core.model.accounts import Limits
from bireme.core.model.cluster import Settings
from bireme.core.model.jobs import ArrayWaiting, Finished, Job
from bireme.core.model.refusals import Refusal
from bireme.testing.books import book_change
from bireme.testing.scenario import Scenario

USERS = {"alice": "physics", "bob": "maths"}
ENFORCE = ("associations", "limits")

few = st.none() | st.integers(1, 3)
tres = st.fixed_dictionaries({}, optional={"cpu": st.integers(1, 8), "gres/gpu": st.integers(1, 4)})
groups = st.fixed_dictionaries(
    {}, optional={"grp_jobs": few, "grp_tres": tres, "grp_submit": st.none() | st.integers(1, 6)}
)
own = st.fixed_dictionaries({}, optional={"max_jobs_per_user": few, "max_submit_per_user": few})
of_qos = st.fixed_dictionaries(
    {},
    optional={
        "grp_jobs": few,
        "grp_tres": tres,
        "max_jobs_per_user": few,
        "max_jobs_per_account": few,
        "max_tres_per_user": tres,
        "max_tres_per_account": tres,
        "max_submit_per_user": few,
        "grp_tres_run_mins": st.fixed_dictionaries({}, optional={"cpu": st.integers(1, 60)}),
    },
)
asks = st.fixed_dictionaries(
    {"cpus": st.integers(1, 4), "time_s": st.sampled_from([60, 300, 900])},
    optional={"gpus": st.integers(1, 2), "array": st.sampled_from(["0-1", "0-3%2"]), "exclusive": st.just(True)},
)
actions = st.lists(
    st.tuples(st.just("submit"), st.sampled_from(sorted(USERS)), asks)
    | st.tuples(st.just("finish"), st.integers(0, 9), st.none())
    | st.tuples(st.just("wait"), st.sampled_from([1, 200]), st.none()),
    min_size=1,
    max_size=14,
)


def holding(world: Scenario) -> list[Job]:
    return list(world.state.holding.values())


def within(jobs: Iterable[Job], count: int | None, amounts: Any, what: str) -> None:
    jobs = list(jobs)
    assert count is None or len(jobs) <= count, f"{what}: {len(jobs)} jobs run, {count} may"
    held: Counter[str] = Counter()
    for job in jobs:
        assert job.allocation is not None
        held.update(job.allocation.tres())
    for name, limit in dict(amounts).items():
        assert held[name] <= limit, f"{what}: {held[name]} {name} are held, {limit} may be"


def minutes_to_come(world: Scenario, name: str) -> float:
    ends = ((job, job.phase.allocation.tres()[name]) for job in holding(world))
    return sum(count * max(0, _began(job) + (job.spec.time_limit_s or 0) - world.now) / 60 for job, count in ends)


def _began(job: Job) -> float:
    return getattr(job.phase, "started_at", None) or job.phase.since


def submitted(world: Scenario, user: str | None = None) -> int:
    alive = (job for job in world.state.jobs.values() if not isinstance(job.phase, Finished))
    mine = (job for job in alive if user in (None, job.spec.owner.user))
    return sum(len(job.array.waiting) if isinstance(job.array, ArrayWaiting) else 1 for job in mine)


def check(world: Scenario, limits: dict[str, Limits]) -> None:
    """By adding up what runs, without the ledger. A limit of the QOS stands in for the associations' of its kind."""
    qos = limits["qos"]
    within(holding(world), qos.grp_jobs, qos.grp_tres, "the QOS")
    for name, limit in qos.grp_tres_run_mins:
        assert minutes_to_come(world, name) <= limit + 0.1
    for user, account in USERS.items():
        mine = [job for job in holding(world) if job.spec.owner.user == user]
        within(mine, qos.max_jobs_per_user, qos.max_tres_per_user, f"the QOS for {user}")
        within(mine, qos.max_jobs_per_account, qos.max_tres_per_account, f"the QOS for {account}")
        if qos.max_submit_per_user is not None:
            assert submitted(world, user) <= qos.max_submit_per_user
        elif limits[user].max_submit_per_user is not None:
            assert submitted(world, user) <= limits[user].max_submit_per_user
        if qos.max_jobs_per_user is None:
            within(mine, limits[user].max_jobs_per_user, {}, user)
    for account, jobs in (("lab", holding(world)), *((USERS[user], _of(world, user)) for user in USERS)):
        theirs = limits.get(account, Limits())
        settled = dict(qos.grp_tres)
        amounts = {name: limit for name, limit in theirs.grp_tres if name not in settled}
        within(jobs, theirs.grp_jobs if qos.grp_jobs is None else None, amounts, f"account {account}")
    if limits["lab"].grp_submit is not None:
        assert submitted(world) <= limits["lab"].grp_submit


def _of(world: Scenario, user: str) -> list[Job]:
    return [job for job in holding(world) if job.spec.owner.user == user]


@settings(max_examples=100, deadline=None)
@given(groups, groups, own, of_qos, actions)
def test_no_limit_is_ever_exceeded(lab: Any, physics: Any, alice: Any, normal: Any, steps: Any) -> None:
    world = Scenario("2x4:h100", settings=Settings(accounting_enforce=ENFORCE, memory_is_consumable=False))
    accounts = {"lab": lab, "physics": {"parent": "lab", **physics}, "maths": {"parent": "lab"}}
    users = {"alice": {"account": "physics", **alice}, "bob": {"account": "maths"}}
    world.record([book_change(world.state.accounts, accounts, users, {"normal": normal})])
    book = world.state.accounts
    limits = {name: book.find(name).limits for name in accounts}  # type: ignore[union-attr]
    limits |= {user: book.find(USERS[user], user).limits for user in USERS} | {"qos": book.qos["normal"].limits}  # type: ignore[union-attr]
    for number, (verb, what, more) in enumerate(steps):
        if verb == "submit":
            with suppress(Refusal):  # MaxSubmit: refused, and nothing is left behind
                world.submit(f"j{number}", user=what, **more)
        elif verb == "wait":
            world.wait(what)
        elif running := holding(world):
            world.finish(world._label(running[what % len(running)]))
        world.settle()
        check(world, limits)
    assert world.replayed().ledger.tallies == world.state.ledger.tallies
