"""Worlds with services: what people deploy, how replicas behave, and the same faults as in other worlds.

Of their own kind, as worlds with a loss are: the clock does not jump, so that what is drained for a time can be said to
have had it. Invariant: the same seed gives the same story; the last behaviour of a service's first revision is a good
one, so that it can come back when everything else is well.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from typing import Any

from bireme.core.model.cluster import ClusterConfig
from bireme.engines.simulated.agents import Behaviour
from bireme.sim.faults.draw import (
    ACCOUNTS,
    BEGIN,
    CRASH_POINTS,
    PEOPLE_S,
    Draft,
    Story,
    draw_cluster,
    draw_fault,
    draw_submission,
)

FAULTS = (
    "crash",
    "disk_full",
    "cut_off",
    "node_dies",
    "node_back",
    "connection_breaks",
    "launch_refused",
    "launch_forgotten",
    "slow_network",
    "reports_delayed",
    "reports_doubled",
    "reports_reordered",
    "reports_of_old_generations",
)
_WORDS = ("deploy", "deploy", "deploy", "scale", "scale", "advise", "restart", "rollback", "promote", "stop")


def draw_with_services(seed: int) -> Story:
    source = random.Random(f"services {seed}")
    config = draw_cluster(source)
    draft = Draft(source, tuple(node.name for node in config.nodes))
    for _ in range(source.randint(1, 8)):
        draw_submission(draft, config)
    for number in range(source.randint(1, 3)):
        _service(draft, config, f"s{number}")
    faults = source.sample(FAULTS, k=source.randint(1, len(FAULTS)))
    for _ in range(source.randint(0, 10)):
        draw_fault(draft, source.choice(faults))
    _away(replace(draft, random=random.Random(f"away {seed}")))
    limits: dict[str, dict[str, Any]] = {account: {} for account in sorted(set(ACCOUNTS.values()))}
    return Story(seed, config, limits, draft.in_order(), flag="--services")


def _away(draft: Draft) -> None:
    """In some worlds the daemon is away for longer than a revision has to get ready, soon after it was asked for."""
    source = draft.random
    deployed = sorted(at - BEGIN for at, kind, _ in draft.acts if kind == "deploy")
    if draft.chance(0.3):
        at, down_s = source.choice(deployed) + source.uniform(1, 40), source.choice((70.0, 250.0, 400.0))
        draft.add("crash", at, point=source.choice(CRASH_POINTS), after=source.randint(0, 3), down_s=down_s)


def _service(draft: Draft, config: ClusterConfig, name: str) -> None:
    """Deployed early, and then whatever people do to services; whoever has it stays its owner."""
    source = draft.random
    at, user = source.uniform(0, 200), source.choice(list(ACCOUNTS))
    size = source.randint(1, max(1, config.nodes[0].cpus // 2))
    replicas = source.choice(("1", "2", "3", "1-3", "0-2"))
    first = {"name": name, "user": user, "replicas": replicas}
    draft.add("deploy", at, **first, options=_options(draft, config, size, _lives(source, well=True)))
    for _ in range(source.randint(0, 6)):
        at += source.uniform(20, 300)
        word = source.choice(_WORDS)
        if at > PEOPLE_S:
            return
        if word == "deploy":
            behaviour = _lives(source, well=source.random() < 0.6)
            draft.add("deploy", at, **first, options=_options(draft, config, size, behaviour))
        elif word in ("scale", "advise"):
            draft.add(f"{word}_service", at, name=name, wanted=source.randint(0 if word == "advise" else 1, 3))
        else:
            draft.add(f"{word}_service", at, name=name)


def _options(draft: Draft, config: ClusterConfig, size: int, behaviour: str) -> dict[str, Any]:
    source = draft.random
    surge, unavailable = source.choice((("1", "0"), ("1", "1"), ("0", "1"), ("50%", "25%"), ("100%", "0")))
    options: dict[str, Any] = {"cpus": size, "comment": behaviour, "surge": surge, "unavailable": unavailable}
    options |= {"drain_s": source.choice((0.0, 10.0, 60.0)), "ready_within_s": source.choice((60.0, 200.0))}
    if config.settings.memory_is_consumable:
        options["mem"] = source.choice((100, 500))
    if config.nodes[0].gres and draft.chance(0.4):
        options["gpus_per_node"] = 1
    if draft.chance(0.2) and (surge, unavailable) != ("0", "1"):
        options["canary"] = source.choice((10, 50))
    return options


def _lives(source: random.Random, *, well: bool) -> str:
    """What its replicas do, one after the other; the last is for all that follow."""
    lives = [_life(source) for _ in range(source.choice((0, 0, 1, 3)))]
    bad = source.choice((Behaviour(run=1.0, code=3, ready=inf), Behaviour(ready=inf), Behaviour(run=20.0, ready=50.0)))
    good = Behaviour(ready=round(source.uniform(0, 30), 3), term=source.choice((0.0, 0.0, 5.0)))
    return "|".join(map(str, (*lives, good if well else bad)))


def _life(source: random.Random) -> Behaviour:
    """Of one that dies by itself, hangs, or is slow to go."""
    ready = round(source.uniform(0, 20), 3)
    good = Behaviour(ready=ready, term=source.choice((0.0, 10.0)), clear=source.choice((0.0, 20.0)))
    dies = replace(good, run=ready + round(source.expovariate(1 / 100), 3), code=source.choice((0, 1, 75)))
    return source.choice((good, dies, dies, replace(good, hang=ready + round(source.uniform(0, 200), 3))))
