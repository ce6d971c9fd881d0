"""A workload from one seed: `generate:jobs=2000 seed=7 arrival=weekly sizes=1:70,8:25,64:5 hours=2 users=20`.

Arrivals are a Poisson process, even, by the hour of the day, or also by the day of the week; sizes a weighted choice;
run times log-normal around `hours`; users differ in how much they submit. Invariant: the same text gives the same
jobs, whatever else draws random numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from bireme.sim.workloads.trace import TraceJob, Workload

PREFIX = "generate:"
HOUR_S, DAY_S = 3600.0, 86_400.0
START = 1_735_776_000.0
"""Thursday 2 January 2025, 00:00 UTC."""
_DAY = [
    0.35, 0.3, 0.25, 0.22, 0.22, 0.25, 0.35, 0.6, 1.0, 1.5, 1.8, 1.8,
    1.6, 1.7, 1.9, 1.9, 1.8, 1.6, 1.3, 1.1, 0.95, 0.85, 0.7, 0.5,
]  # fmt: skip
"""How busy each hour is, against the mean."""
_WEEK = [1.2, 1.25, 1.25, 1.2, 1.1, 0.5, 0.5]
"""Monday to Sunday."""
ARRIVALS = ("poisson", "daily", "weekly")


class BadGeneratorError(ValueError):
    """The text names something that the generator does not have; the message lists what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    jobs: int = 1000
    seed: int = 1
    days: float = 7.0
    """Over which the jobs come."""
    arrival: str = "daily"
    sizes: tuple[tuple[int, float], ...] = ((1, 60.0), (2, 10.0), (4, 10.0), (8, 15.0), (16, 4.0), (64, 1.0))
    """(GPUs, weight)."""
    hours: float = 2.0
    """The median run time."""
    spread: float = 1.3
    """Sigma of the logarithm: 0 is always the median."""
    users: int = 20
    accounts: int = 4
    over: float = 3.0
    """Limits are up to so many times the run time."""
    fail: float = 0.1
    """Share of jobs that end with an error."""


def parse(text: str) -> Mix:
    given: dict[str, Any] = {}
    known: dict[str, Callable[[str], Any]] = {field.name: type(getattr(Mix(), field.name)) for field in fields(Mix)}
    for word in text.removeprefix(PREFIX).split():
        name, equals, value = word.partition("=")
        if name not in known or not equals:
            raise BadGeneratorError(f"{word!r}: the generator knows {', '.join(f'{each}=' for each in known)}")
        try:
            given[name] = _sizes(value) if name == "sizes" else known[name](value)
        except ValueError:
            hint = "; put a space between two settings" if "=" in value else ""
            raise BadGeneratorError(f"{word!r}: {value!r} is not {_expected(name)}{hint}") from None
    mix = Mix(**given)
    if mix.arrival not in ARRIVALS:
        raise BadGeneratorError(f"arrival={mix.arrival}: there are {', '.join(ARRIVALS)}")
    if min(mix.jobs, mix.days, mix.hours, mix.users, mix.accounts) <= 0 or mix.over < 1:
        raise BadGeneratorError("jobs, days, hours, users and accounts are more than 0, over is at least 1")
    return mix


def _expected(name: str) -> str:
    return "GPUS:WEIGHT,..., like 1:70,8:30" if name == "sizes" else "a number"


def _sizes(text: str) -> tuple[tuple[int, float], ...]:
    pairs = [part.partition(":") for part in text.split(",")]
    return tuple((int(size), float(weight or 1)) for size, _, weight in pairs)


def generate(mix: Mix) -> Workload:
    rng = random.Random(mix.seed)
    busy = [1 / (1 + rank) ** 0.8 for rank in range(mix.users)]
    users = [f"user{number + 1}" for number in range(mix.users)]
    sizes, weights = zip(*mix.sizes)
    jobs = []
    for line, submit in enumerate(sorted(_arrival(mix, rng) for _ in range(mix.jobs)), start=1):
        run_s = max(1.0, round(mix.hours * HOUR_S * math.exp(rng.gauss(0.0, mix.spread))))
        user = rng.choices(users, busy)[0]
        jobs.append(
            TraceJob(
                submit=submit,
                run_s=run_s,
                gpus=rng.choices(sizes, weights)[0],
                limit_s=int(-(-run_s * rng.uniform(1.05, max(1.05, mix.over)) // 60) * 60),
                user=user,
                account=f"account{int(user[4:]) % mix.accounts + 1}",
                exit_code=1 if rng.random() < mix.fail else 0,
                line=line,
            )
        )
    return Workload(source=f"generated with seed {mix.seed}", jobs=tuple(jobs))


def _arrival(mix: Mix, rng: random.Random) -> float:
    """By rejection: a moment is kept as often as its hour and day are busy."""
    while True:
        offset = rng.uniform(0.0, mix.days * DAY_S)
        if mix.arrival == "poisson":
            return START + round(offset)
        weight = _DAY[int(offset % DAY_S // HOUR_S)] / max(_DAY)
        if mix.arrival == "weekly":
            weight *= _WEEK[(3 + int(offset // DAY_S)) % 7] / max(_WEEK)
        if rng.random() < weight:
            return START + round(offset)
