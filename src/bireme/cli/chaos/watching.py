"""Waits for the signs of a fault, and says of each when it was seen, or that it was not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bireme.cli.chaos.faults import Sign

_LOOK_S = 0.05
_SLOW_LOOK_S = 0.5
_SOON_S = 5.0


class Told(NamedTuple):
    """What became of a sign. `after_s` is None: it was not seen."""

    what: str
    after_s: float | None
    shows: str


def watch(
    signs: Sequence[Sign],
    most_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Iterator[Told]:
    """Each as it is seen, then those that were not, in time: `most_s`, else their own."""
    began, waiting = clock(), list(signs)
    while waiting:
        passed = clock() - began
        for sign in list(waiting):
            shows = sign.seen()
            if shows is not None:
                waiting.remove(sign)
                yield Told(sign.what, clock() - began, shows)
            elif passed > (sign.within_s if most_s is None else most_s):
                waiting.remove(sign)
                yield Told(sign.what, None, "")
        if waiting:
            rest(_LOOK_S if passed < _SOON_S else _SLOW_LOOK_S)
