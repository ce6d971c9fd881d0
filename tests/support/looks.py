"""Looking again and again for what no event tells: a loop over the times to look, `for _ in looks(30): if ...: return`.

Every wait of the tests that has to poll is made of it. After each look it pauses twice as long as that took, so that a
look that starts a command or reads the process table leaves most of the CPU to what it waits for, and to the tests
beside it; one that costs nothing is soon repeated.
Invariant: there is at least one look, and one after the patience is over, however slow the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

_SHORTEST_S = 0.01
_LONGEST_S = 0.5
_REST = 2.0
"""So many times as long as a look took is the pause after it."""


def looks(patience_s: float) -> Iterator[None]:
    deadline = time.monotonic() + patience_s
    begun = 0.0
    while begun < deadline:
        begun = time.monotonic()
        yield
        took = time.monotonic() - begun
        time.sleep(min(max(_SHORTEST_S, _REST * took), _LONGEST_S))
