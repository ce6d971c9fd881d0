"""One seed draws the whole world: the cluster, what people ask for and when, and what goes wrong and when.

The story is data, drawn before anything runs, so that a part of it can be left out and the rest stays as it was
(`shrink`). Nothing here plays it. Invariant: the same seed gives the same story, on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bireme.core.model.cluster import ClusterConfig, PrioritySettings, Settings
from bireme.core.model.policy import Policy, Preemption
from bireme.engines.simulated.agents import Behaviour
from bireme.testing.worlds import build_cluster

USERS = {"root": 0, "alice": 1001, "bob": 1002, "carol": 1003}
ACCOUNTS = {"alice": "physics", "bob": "physics", "carol": "maths"}
BEGIN = 1_000_000.0
PEOPLE_S = 1_200.0
"""People come and ask, and things break, for so long; then it is over, and everything must come to an end."""
CLOSED = "node_closed"
CRASH_POINTS = ("idle", "decided", "committed", "settled", "sending", "sent", "acknowledged")


@dataclass(frozen=True, slots=True)
class Act:
    """Something that happens to the world. `number` is its place in the story."""

    number: int
    at: float
    kind: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        said = " ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.number:3} {self.at - BEGIN:7.1f} s  {self.kind} {said}"


@dataclass(frozen=True, slots=True)
class Story:
    seed: int
    config: ClusterConfig
    limits: dict[str, dict[str, Any]]
    """Of accounts, by name, as `testing.books` writes them."""
    acts: tuple[Act, ...]
    qos: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Written alike."""
    flag: str = ""
    """With which `bireme sim world` draws a world of this kind."""

    def without(self, numbers: frozenset[int]) -> Story:
        return replace(self, acts=tuple(act for act in self.acts if act.number not in numbers))


@dataclass(slots=True)
class Draft:
    random: random.Random
    nodes: tuple[str, ...]
    acts: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    submissions: int = 0

    def add(self, kind: str, at: float | None = None, **facts: Any) -> None:
        when = self.random.uniform(0, PEOPLE_S) if at is None else at
        self.acts.append((BEGIN + when, kind, facts))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def in_order(self) -> tuple[Act, ...]:
        """All that was added, by its time, and numbered."""
        acts = sorted(self.acts, key=lambda act: act[0])
        return tuple(Act(number, at, kind, facts) for number, (at, kind, facts) in enumerate(acts))


def draw(seed: int, *, wishes: bool = True) -> Story:
    """`wishes` False: as worlds were before people had them, for the seeds that found something then."""
    source = random.Random(f"bireme {seed}")
    config = draw_cluster(source)
    draft = Draft(source, tuple(node.name for node in config.nodes))
    for _ in range(source.randint(6, 26)):
        draw_submission(draft, config)
    for _ in range(source.randint(0, 24)):
        source.choice(_ORDERS)(draft)
    faults = source.sample(FAULTS, k=source.randint(1, len(FAULTS)))
    for _ in range(source.randint(1, 16)):
        _FAULTS[source.choice(faults)](draft)
    _closings(draft, random.Random(f"closings {seed}"))
    limits, qos = _limits(source), dict[str, dict[str, Any]]()
    if wishes:
        wishing = Draft(random.Random(f"wishes {seed}"), draft.nodes, draft.acts, draft.submissions)
        config, qos = _strict(wishing.random, config), {"thin": {"grp_jobs": 2, "max_tres_per_user": {"cpu": 4}}}
        _wishes(wishing, config)
        later = replace(wishing, random=random.Random(f"later wishes {seed}"))
        _later_wishes(later, config)
        later = replace(later, random=random.Random(f"big ones {seed}"))
        _big_one_held(later, config)
        _counted_in_all(replace(later, random=random.Random(f"in all {seed}")), config)
    return Story(seed, config, limits, draft.in_order(), qos)


def draw_with_loss(seed: int) -> Story:
    """A world whose journal is replaced by an older copy: the newest events are lost.

    Of its own kind: nodes forget nothing and nobody queues jobs again that are over, so that what a node knows can be
    said with certainty to have to stay as it is.
    """
    source = random.Random(f"loss {seed}")
    config = draw_cluster(source)
    draft = Draft(source, tuple(node.name for node in config.nodes))
    for _ in range(source.randint(8, 24)):
        draw_submission(draft, config)
    for _ in range(source.randint(0, 6)):
        source.choice((_crash, _connection_breaks, _slow, _disk_full))(draft)
    for _ in range(source.randint(1, 2)):
        at = source.uniform(5, PEOPLE_S - 300)
        draft.add("backup", at)
        draft.add("journal_lost", at + source.uniform(1, 250), down_s=source.choice((0.0, 5.0, 100.0)))
    return Story(seed, config, {account: {} for account in sorted(set(ACCOUNTS.values()))}, draft.in_order())


# -- the cluster ---------------------------------------------------------------------------------------------------


def draw_cluster(source: random.Random) -> ClusterConfig:
    count, each = source.randint(2, 6), source.choice((2, 4, 8))
    gpus = ":h100" if source.random() < 0.6 else ""
    options: dict[str, Any] = {"memory_mib": 1_000 * each} if source.random() < 0.5 else {}
    if gpus and source.random() < 0.3:
        options["shard"] = 4
    partitions: dict[str, dict[str, Any]] = {"main": {"default_time_s": 600, "max_time_s": 1800}}
    if source.random() < 0.6:
        partitions["urgent"] = {"default_time_s": 300, "max_time_s": 1800, "priority_tier": 10}
        partitions["urgent"] |= {"grace_time_s": source.choice((0, 20))}
    return build_cluster(f"{count}x{each}{gpus}", partitions=partitions, settings=_settings(source, options), **options)


def _settings(source: random.Random, options: dict[str, Any]) -> Settings:
    mode = source.choice(("OFF", "REQUEUE", "CANCEL", "SUSPEND"))
    preemption = Preemption() if mode == "OFF" else Preemption("partition", mode)
    priority = PrioritySettings()
    if source.random() < 0.5:
        priority = PrioritySettings(
            multifactor=True, calc_period_s=60, weight_age=1000, weight_fair_share=10_000, weight_job_size=500
        )
    return Settings(
        kill_wait_s=source.choice((2, 30)),
        min_job_age_s=source.choice((60, 300)),
        job_requeue=source.random() < 0.7,
        requeue_exit=(75,),
        requeue_exit_hold=(76,),
        max_batch_requeue=source.choice((1, 5)),
        memory_is_consumable="memory_mib" in options,
        batch_start_timeout_s=source.choice((10, 30)),
        slurmd_timeout_s=source.choice((60, 300)),
        accounting_enforce=source.choice(((), ("associations", "limits"))),
        priority_decay_half_life_s=source.choice((None, 600, 7 * 86_400)),
        policy=Policy(backfill=source.random() < 0.8, resolution_s=source.choice((0.0, 60.0)), preemption=preemption),
        priority=priority,
    )


def _limits(source: random.Random) -> dict[str, dict[str, Any]]:
    """Such that every job alone is within them: nobody waits forever."""
    limits: dict[str, dict[str, Any]] = {account: {} for account in sorted(set(ACCOUNTS.values()))}
    for words in limits.values():
        if source.random() < 0.4:
            words["grp_jobs"] = source.randint(1, 4)
        if source.random() < 0.2:
            words["grp_submit"] = source.randint(8, 20)
    return limits


# -- what people do --------------------------------------------------------------------------------------------------


def draw_submission(draft: Draft, config: ClusterConfig) -> None:
    source = draft.random
    parts = 1 if draft.chance(0.88) else source.randint(2, 3)
    components = [_job(draft, config, alone=parts == 1) for _ in range(parts)]
    at = source.choice((0.0, source.uniform(0, 60), source.uniform(0, PEOPLE_S)))
    draft.add("submit", at, name=f"j{draft.submissions}", user=source.choice(list(ACCOUNTS)), jobs=components)
    draft.submissions += 1


def _job(draft: Draft, config: ClusterConfig, *, alone: bool) -> dict[str, Any]:
    """Components of a heterogeneous job (`alone` False) are small: together they must fit, or they wait for ever."""
    source, each = draft.random, config.nodes[0].cpus if alone else config.nodes[0].cpus // 2
    options: dict[str, Any] = {"nodes": min(len(draft.nodes), source.choice((1, 1, 1, 2, 2, 3)) if alone else 1)}
    kind = source.choice(("cpus", "tasks", "gpus", "shard", "exclusive") if alone else ("cpus", "gpus"))
    if kind == "gpus" and config.nodes[0].gres:
        options["gpus_per_node"] = source.randint(1, each)
    elif kind == "shard" and len(config.nodes[0].gres) > 1:
        options["gres"] = f"shard:{source.randint(1, 4)}"
    elif kind == "exclusive":
        options["exclusive"] = True
    elif kind == "tasks":
        options["tasks"] = options["nodes"] * source.randint(1, 2)
    else:
        options["cpus"] = source.randint(1, each)
    if config.settings.memory_is_consumable:
        options["mem"] = source.choice((100, 500, 1_000))
    options |= _habits(draft, config, alone=alone)
    options["comment"] = str(_behaviour(source))
    return options


def _habits(draft: Draft, config: ClusterConfig, *, alone: bool) -> dict[str, Any]:
    """Limits, arrays, dependencies, holds ... that people add."""
    source = draft.random
    options: dict[str, Any] = {"time_s": source.choice((60, 300, 900, 1800))}
    if len(config.partitions) > 1 and draft.chance(0.3):
        options["partition"] = source.choice(("urgent", "main,urgent"))
    if draft.chance(0.3):
        options["requeue"] = draft.chance(0.5)
    if draft.chance(0.1):
        options["hold"] = True
    if draft.chance(0.1):
        options["begin_at"] = BEGIN + source.uniform(0, PEOPLE_S)
    if draft.chance(0.1):
        options["signal"] = "USR1@30"
    if draft.submissions and draft.chance(0.2):
        word = source.choice(("after", "afterany", "afterok", "afternotok"))
        options["after"] = f"{word}:j{source.randrange(draft.submissions)}"
    if alone and draft.chance(0.2):
        options["array"] = source.choice(("0-2", "0-5%2", "1-9:4"))
    elif alone and draft.chance(0.1):
        options["kind"] = "interactive"
    return options


def _behaviour(source: random.Random) -> Behaviour:
    return Behaviour(
        run=round(source.choice((0.0, source.uniform(0, 5), source.expovariate(1 / 120), 5_000.0)), 3),
        code=source.choice((0, 0, 0, 0, 1, 3, 75, 76)),
        then=source.choice((0, 0, 2)),
        signal=source.choice((0, 0, 0, 0, 0, 11)),
        term=source.choice((0.0, 0.0, 1.0, 10.0, 1e9)),
        clear=source.choice((0.0, 0.0, 0.0, 0.5, 20.0)),
        prepare=source.choice((0.0, 0.0, 0.0, 0.3, 3.0)),
    )


def _order_on_a_job(draft: Draft) -> None:
    """Somebody asks something about a job, whatever it is doing."""
    source = draft.random
    word = source.choice(("cancel", "cancel", "hold", "release", "requeue", "suspend", "suspend", "resume", "signal"))
    draft.add(word, job=source.randrange(draft.submissions), user=source.choice((*ACCOUNTS, "root", "root")))


def _step(draft: Draft) -> None:
    source = draft.random
    behaviour = Behaviour(run=round(source.uniform(0, 60), 3), code=source.choice((0, 0, 2)))
    limit_s = source.choice((None, None, 10))
    draft.add("step", job=source.randrange(draft.submissions), behaviour=str(behaviour), time_limit_s=limit_s)


def _end_step(draft: Draft) -> None:
    draft.add("end_step", job=draft.random.randrange(draft.submissions))


def _update(draft: Draft) -> None:
    source = draft.random
    changes = source.choice(
        ({"time_limit_s": 60}, {"time_limit_s": 1_200}, {"nice": 50}, {"priority": 0}, {"nodes": 1})
    )
    draft.add("update", job=source.randrange(draft.submissions), changes=changes)


def _node_order(draft: Draft) -> None:
    source = draft.random
    word = source.choice(("DRAIN", "DRAIN", "DOWN", "RESUME", "RESUME"))
    draft.add("node", node=source.choice(draft.nodes), state=word)


def _reservation(draft: Draft) -> None:
    source = draft.random
    at = source.uniform(0, PEOPLE_S)
    nodes = source.sample(draft.nodes, k=source.randint(1, len(draft.nodes)))
    facts = {"nodes": tuple(sorted(nodes)), "begin_s": source.uniform(0, 300), "lasts_s": source.randint(60, 600)}
    flags = source.choice(((), ("OVERLAP",), ("MAINT", "IGNORE_JOBS"), ("FLEX",)))
    draft.add("reserve", at, name=f"r{len(draft.acts)}", user=source.choice(list(ACCOUNTS)), flags=flags, **facts)


def _limit(draft: Draft) -> None:
    source = draft.random
    account = source.choice(sorted(set(ACCOUNTS.values())))
    draft.add("limit", account=account, limits=source.choice(({}, {"grp_jobs": 1}, {"grp_jobs": 3})))


def _reconfigure(draft: Draft) -> None:
    """A node leaves the configuration for a while, or a setting changes."""
    source = draft.random
    at = source.uniform(0, PEOPLE_S)
    gone = source.choice((*draft.nodes[1:], ""))
    draft.add("reconfigure", at, without=gone, kill_wait_s=source.choice((1, 10)))
    draft.add("reconfigure", at + source.uniform(1, 200), without="", kill_wait_s=5)


_ORDERS: tuple[Callable[[Draft], None], ...] = (
    *(_order_on_a_job,) * 6,
    *(_step,) * 3,
    _end_step,
    _update,
    *(_node_order,) * 2,
    _reservation,
    _limit,
    _reconfigure,
)


# -- what people wish for ------------------------------------------------------------------------------------------

LICENCES = {"seat": 3}
"""Of every world with wishes."""


def _strict(source: random.Random, config: ClusterConfig) -> ClusterConfig:
    """With licences, limits that are enforced in most worlds, and jobs that are let be for a while."""
    settings = config.settings
    preemption = replace(settings.policy.preemption, exempt_s=source.choice((0, 0, 60)))
    written = ",".join(f"{name}:{count}" for name, count in LICENCES.items())
    enforced = ("associations", "limits") if source.random() < 0.7 else settings.accounting_enforce
    policy = replace(settings.policy, preemption=preemption)
    return replace(config, settings=replace(settings, licenses=written, accounting_enforce=enforced, policy=policy))


def _wishes(draft: Draft, config: ClusterConfig) -> None:
    """Jobs that ask for more than room, and orders about them.

    From numbers of their own, as the closings: they came later than the rest.
    """
    source = draft.random
    for wish in _WISHES:
        if draft.chance(0.5):
            wish(draft, config)
    for _ in range(source.randint(2, 10)):
        _order_on_a_job(draft)
    for _ in range(source.choice((0, 0, 1, 2))):
        _disk_full(draft)


def _wish(draft: Draft, config: ClusterConfig, at: float | None = None, **wished: Any) -> int:
    """Submits a small job with these options; the number of its submission."""
    source = draft.random
    options: dict[str, Any] = {"nodes": 1, "cpus": source.randint(1, 2), "time_s": source.choice((60, 300, 900))}
    if config.settings.memory_is_consumable:
        options["mem"] = source.choice((100, 500))
    run = round(source.choice((0.0, source.uniform(0, 5), source.expovariate(1 / 60), 5_000.0)), 3)
    options["comment"] = str(replace(_behaviour(source), run=run))
    when = source.uniform(0, PEOPLE_S) if at is None else at
    user = wished.pop("user", source.choice(list(ACCOUNTS)))
    number, draft.submissions = draft.submissions, draft.submissions + 1
    draft.add("submit", when, name=f"j{number}", user=user, jobs=[options | wished])
    return number


def _dependent(draft: Draft, config: ClusterConfig) -> None:
    """A job, and one that waits for it: submitted while it waits, runs or is over."""
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 200)
    first = _wish(draft, config, at, **({"hold": True} if draft.chance(0.1) else {}))
    word = source.choice(("after", "afterany", "afterok", "afterok", "afternotok"))
    condition = f"{word}:j{first}" + ("+1" if word == "after" and draft.chance(0.5) else "")
    if draft.chance(0.2) and first:
        condition += source.choice((",", "?")) + f"afterany:j{source.randrange(first)}"
    _wish(draft, config, at + source.choice((0.5, 20.0, 150.0)), after=condition, **_kill_invalid(draft))


def _dependent_array(draft: Draft, config: ClusterConfig) -> None:
    source = draft.random
    at, shape = source.uniform(0, PEOPLE_S - 200), source.choice(("0-2", "0-3%1", "1-4%2"))
    first = _wish(draft, config, at, array=shape)
    later = at + source.choice((0.5, 20.0, 150.0))
    word = source.choice(("aftercorr", "aftercorr", "after", "after", "afterok", "afterany", "afternotok"))
    if word == "aftercorr":
        _wish(draft, config, later, after=f"aftercorr:j{first}", array=shape, **_kill_invalid(draft))
    else:
        one = "_2" if draft.chance(0.3) else ""
        _wish(draft, config, later, after=f"{word}:j{first}{one}", **_kill_invalid(draft))


def _kill_invalid(draft: Draft) -> dict[str, bool]:
    return {"kill_on_invalid_dependency": True} if draft.chance(0.3) else {}


def _twins(draft: Draft, config: ClusterConfig) -> None:
    """Jobs of one name and user, of which one runs at a time; the first is over soon, and comes again and again."""
    source = draft.random
    user, at = source.choice(list(ACCOUNTS)), source.uniform(0, PEOPLE_S - 100)
    for place in range(source.randint(2, 4)):
        when, run = at + place * source.uniform(0, 20), str(Behaviour(run=200.0 if place else 2.0))
        number = _wish(draft, config, when, user=user, name="twin", after="singleton", requeue=True, comment=run)
        for later in (40.0, 90.0, 300.0) if place == 0 else ():
            draft.add("requeue", at + later, job=number, user="root", held=False)


def _held(draft: Draft, config: ClusterConfig) -> None:
    """Held from the start or later, and sometimes released; sometimes by somebody who may not."""
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 300)
    number = _wish(draft, config, at, user="alice", **({"hold": True} if draft.chance(0.6) else {}))
    draft.add("hold", at + source.uniform(0, 30), job=number, user=source.choice(("alice", "root")))
    if draft.chance(0.6):
        draft.add("release", at + source.uniform(60, 250), job=number, user=source.choice(("alice", "bob", "root")))


def _big_one_held(draft: Draft, config: ClusterConfig) -> None:
    """Some wait behind a job that wants every node, until somebody holds it to let them pass."""
    if not draft.chance(0.05):
        return
    source, lasts = draft.random, str(Behaviour(run=5_000.0))
    at = source.uniform(0, PEOPLE_S - 300)
    _wish(draft, config, at, time_s=300, comment=lasts)
    big = _wish(draft, config, at + 1, nodes=len(draft.nodes), exclusive=True, time_s=300)
    for place in range(2 * len(draft.nodes)):
        _wish(draft, config, at + 2 + place, time_s=900, comment=lasts)
    held_at = at + source.uniform(20, 60)
    draft.add("hold", held_at, job=big, user="root")
    draft.add("release", held_at + source.uniform(20, 200), job=big, user="root")


def _counted_in_all(draft: Draft, config: ClusterConfig) -> None:
    """`--gpus` of some that come to a full cluster, for one node or for two, and smaller ones behind them."""
    gpus = config.nodes[0].gres_count("gpu")
    if not gpus or not draft.chance(0.1):
        return
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 200)
    for _ in draft.nodes:
        run = str(Behaviour(run=round(source.uniform(50, 300), 3)))
        _wish(draft, config, at, cpus=1, gpus_per_node=gpus, time_s=900, comment=run)
    for place in range(source.randint(2, 5)):
        nodes = min(source.choice((1, 2)), len(draft.nodes))
        _wish(draft, config, at + 1 + place, cpus=1, nodes=nodes, gpus=source.randint(nodes, nodes * gpus))


def _requeued(draft: Draft, config: ClusterConfig) -> None:
    """Requeued while it runs, and held then in one case of two (`_requeue` of People)."""
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 200)
    number = _wish(draft, config, at, requeue=True, comment=str(Behaviour(run=200.0, term=source.choice((0.0, 20.0)))))
    when = at + source.uniform(5, 60)
    draft.add("requeue", when, job=number, user="root", held=draft.chance(0.5))
    if draft.chance(0.5):
        draft.add("cancel", when + source.uniform(0.1, 8), job=number, user="root")


def _suspended(draft: Draft, config: ClusterConfig) -> None:
    """For a while, by an operator; its time limit comes that much later."""
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 200)
    number = _wish(draft, config, at, time_s=source.choice((60, 300)), comment=str(Behaviour(run=5_000.0)))
    when = at + source.uniform(2, 40)
    draft.add("suspend", when, job=number, user="root")
    draft.add("resume", when + source.uniform(5, 100), job=number, user="root")


def _pushy(draft: Draft, config: ClusterConfig) -> None:
    """Jobs that fill the nodes, and one that may take from them, if the cluster has such a partition."""
    source = draft.random
    at, cpus = source.uniform(0, PEOPLE_S - 200), config.nodes[0].cpus
    for _ in draft.nodes:
        run = str(Behaviour(run=round(source.uniform(50, 300), 3)))
        _wish(draft, config, at + source.uniform(0, 5), cpus=cpus, time_s=900, comment=run)
    higher = {"partition": "urgent"} if len(config.partitions) > 1 else {}
    for _ in range(source.randint(1, 3)):
        _wish(draft, config, at + source.uniform(6, 150), cpus=cpus, **higher)


def _unlucky(draft: Draft, config: ClusterConfig) -> None:
    """Submitted just when the disk is full, and when something ended."""
    at = draft.random.uniform(0, PEOPLE_S - 200)
    run_s = round(draft.random.uniform(10, 50), 3)
    _wish(draft, config, at, time_s=900, comment=str(Behaviour(run=run_s)))
    for when in (at + run_s, at + 100.0):
        draft.add("disk_full", when, writes=draft.random.randint(1, 3), real=draft.chance(0.3))
    _wish(draft, config, at + 100.0 + 0.01)


def _later(draft: Draft, config: ClusterConfig) -> None:
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 200)
    _wish(draft, config, at, begin_at=BEGIN + at + source.uniform(5, 300))


def _in_time(draft: Draft, config: ClusterConfig) -> None:
    at = draft.random.uniform(0, PEOPLE_S - 200)
    _wish(draft, config, at, time_s=60, deadline_at=BEGIN + at + draft.random.uniform(70, 400))


def _licensed(draft: Draft, config: ClusterConfig) -> None:
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 100)
    for _ in range(source.randint(2, 4)):
        _wish(draft, config, at + source.uniform(0, 20), licenses=source.choice(("seat", "seat:2", "seat:3")))


def _heavy(draft: Draft, config: ClusterConfig) -> None:
    """More than half of a node's memory each, and few CPUs."""
    source = draft.random
    at, memory_mib = source.uniform(0, PEOPLE_S - 100), config.nodes[0].memory_mib
    for _ in range(len(draft.nodes) + 1):
        run = str(Behaviour(run=round(source.uniform(5, 100), 3)))
        wished = {"mem": memory_mib * 6 // 10} if config.settings.memory_is_consumable else {}
        _wish(draft, config, at + source.uniform(0, 20), cpus=1, comment=run, **wished)


def _thin(draft: Draft, config: ClusterConfig) -> None:
    """More jobs of a QOS than it lets run at once."""
    source = draft.random
    at, user = source.uniform(0, PEOPLE_S - 100), source.choice(list(ACCOUNTS))
    for _ in range(source.randint(3, 4)):
        _wish(draft, config, at + source.uniform(0, 10), user=user, qos="thin")


def _many_at_once(draft: Draft, config: ClusterConfig) -> None:
    """An array whose throttle counts, requeued on the way."""
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 200)
    run = str(Behaviour(run=round(source.uniform(5, 60), 3)))
    number = _wish(draft, config, at, array=source.choice(("0-5%1", "0-5%2", "0-7%3")), comment=run)
    if draft.chance(0.4):
        draft.add("requeue", at + source.uniform(1, 60), job=number, user="root")


def _reserved(draft: Draft, config: ClusterConfig) -> None:
    """Nodes for a user or an account, jobs of theirs inside, and jobs of strangers who would like to be."""
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 300)
    name, user = f"w{len(draft.acts)}", source.choice(list(ACCOUNTS))
    nodes = tuple(sorted(source.sample(draft.nodes, k=source.randint(1, max(1, len(draft.nodes) - 1)))))
    whom = {"user": user} if draft.chance(0.5) else {"account": ACCOUNTS[user]}
    flags = source.choice((("IGNORE_JOBS",), ("IGNORE_JOBS",), ("IGNORE_JOBS", "FLEX"), ("MAINT", "IGNORE_JOBS")))
    begin_s, lasts_s = source.choice((0.0, 60.0, 200.0)), source.randint(100, 600)
    draft.add("reserve", at, name=name, nodes=nodes, begin_s=begin_s, lasts_s=lasts_s, flags=flags, **whom)
    for _ in range(source.randint(1, 3)):
        who = user if draft.chance(0.7) else source.choice(list(ACCOUNTS))
        _wish(draft, config, at + source.uniform(1, 100), user=who, reservation=name)
    for _ in range(source.randint(1, 3)):
        _wish(draft, config, at + source.uniform(1, begin_s + 100), user=source.choice(list(ACCOUNTS)))


_WISHES: tuple[Callable[[Draft, ClusterConfig], None], ...] = (
    *(_dependent,) * 3,
    *(_dependent_array,) * 2,
    *(_reserved,) * 2,
    _twins,
    _held,
    _requeued,
    _suspended,
    _pushy,
    _unlucky,
    _later,
    _in_time,
    _licensed,
    _heavy,
    _thin,
    _many_at_once,
)


def _failing_array(draft: Draft, config: ClusterConfig) -> None:
    """An array whose tasks fail one after the other, and a job that waits until all of them have begun."""
    source = draft.random
    at, run = source.uniform(0, PEOPLE_S - 200), str(Behaviour(run=round(source.uniform(5, 30), 3), code=1))
    first = _wish(draft, config, at, array=source.choice(("0-3%1", "0-5%2")), comment=run)
    _wish(draft, config, at + source.choice((0.5, 20.0)), after=f"after:j{first}")


def _cancelled_on_its_way_back(draft: Draft, config: ClusterConfig) -> None:
    """Requeued while it runs, and cancelled while it is still being ended."""
    source = draft.random
    at = source.uniform(0, PEOPLE_S - 200)
    number = _wish(draft, config, at, time_s=900, requeue=True, comment=str(Behaviour(run=500.0, term=20.0)))
    when = at + source.uniform(5, 60)
    draft.add("requeue", when, job=number, user="root", held=False)
    draft.add("cancel", when + source.uniform(0.1, 1.5), job=number, user="root")


def _later_wishes(draft: Draft, config: ClusterConfig) -> None:
    """From numbers of their own, again: these came after the others."""
    for wish in (_failing_array, _cancelled_on_its_way_back):
        if draft.chance(0.5):
            wish(draft, config)


# -- what goes wrong -------------------------------------------------------------------------------------------------


def _crash(draft: Draft) -> None:
    source = draft.random
    down_s = source.choice((0.0, 1.0, 30.0, 400.0))
    draft.add("crash", point=source.choice(CRASH_POINTS), after=source.randint(0, 6), down_s=down_s)


def _disk_full(draft: Draft) -> None:
    draft.add("disk_full", writes=draft.random.randint(1, 5), real=draft.chance(0.3))


def _cut_off(draft: Draft) -> None:
    source = draft.random
    draft.add("cut_off", node=source.choice(draft.nodes), for_s=source.choice((1.0, 8.0, 90.0, 500.0)))


def _node_dies(draft: Draft) -> None:
    draft.add("node_dies", node=draft.random.choice(draft.nodes), remembers=draft.chance(0.5))


def _node_back(draft: Draft) -> None:
    """Cut off for longer than SlurmdTimeout, while everything on it runs on: its jobs were given up long ago."""
    draft.add("cut_off", node=draft.random.choice(draft.nodes), for_s=draft.random.choice((310.0, 700.0)))


def _connection_breaks(draft: Draft) -> None:
    draft.add("connection_breaks", node=draft.random.choice(draft.nodes))


def _launch_refused(draft: Draft) -> None:
    draft.add("launch_refused", node=draft.random.choice(draft.nodes), times=draft.random.randint(1, 3))


def _launch_forgotten(draft: Draft) -> None:
    draft.add("launch_forgotten", node=draft.random.choice(draft.nodes), times=draft.random.randint(1, 2))


def _slow(draft: Draft) -> None:
    source = draft.random
    draft.add("slow_network", latency_s=source.choice((0.5, 5.0, 20.0)), for_s=source.uniform(5, 200))


def _reports(word: str) -> Callable[[Draft], None]:
    def add(draft: Draft) -> None:
        draft.add(word, times=draft.random.randint(1, 20))

    return add


def _clock_jumps(draft: Draft) -> None:
    draft.add("clock_jumps", by_s=draft.random.choice((-3_600.0, -30.0, -1.0, 1.0, 30.0, 700.0, 7_200.0)))


def _closings(draft: Draft, source: random.Random) -> None:
    """Nodes that their own cluster closes for a while, saying so in other words on the way.

    From numbers of their own: they came later than the rest, and worlds of old seeds stay much as they were.
    """
    if source.random() < 0.3:
        for _ in range(source.randint(1, 3)):
            words = source.sample(("cordoned", "tainted", "to be upgraded"), k=source.randint(1, 3))
            lasts_s = source.choice((0.05, 5.0, 120.0))
            draft.add(CLOSED, source.uniform(0, PEOPLE_S), node=source.choice(draft.nodes), words=words, each_s=lasts_s)


_FAULTS: dict[str, Callable[[Draft], None]] = {
    "crash": _crash,
    "disk_full": _disk_full,
    "cut_off": _cut_off,
    "node_dies": _node_dies,
    "node_back": _node_back,
    "connection_breaks": _connection_breaks,
    "launch_refused": _launch_refused,
    "launch_forgotten": _launch_forgotten,
    "slow_network": _slow,
    "reports_delayed": _reports("reports_delayed"),
    "reports_doubled": _reports("reports_doubled"),
    "reports_reordered": _reports("reports_reordered"),
    "reports_of_old_generations": _reports("reports_of_old_generations"),
    "clock_jumps": _clock_jumps,
}
FAULTS = tuple(_FAULTS)


def draw_fault(draft: Draft, word: str) -> None:
    _FAULTS[word](draft)
