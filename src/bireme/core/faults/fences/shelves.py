"""Where fences lie in the state, and what is still to be decided about them."""

from __future__ import annotations

from collections.abc import Iterator

from bireme.core.model.healing.fences import Fence
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State

FENCES: Shelf[str, Fence] = Shelf("fences", str, Fence)
"""By the key of their place. One of a node that the configuration does not have (any more) stays: it may come back."""
NEWS: Shelf[str, str] = Shelf("fence_news", str, str)
"""Keys of findings about which nothing is decided yet. Empty between turns."""
LEAVING: Shelf[str, str] = Shelf("fences_leaving", str, str)
"""Keys of fences that are to be lifted, and why. Empty between turns."""
LEAVING_BY: Shelf[str, str] = Shelf("fences_leaving_by", str, str)
"""Who wants that, where it is a person."""
STALE: Shelf[int, str] = Shelf("fence_decisions_stale", int, str)
"""Numbers of healings that nobody has approved and that have no occasion any more, and why. Empty between turns."""


def fences_on(state: State, node: str) -> Iterator[Fence]:
    """Those of its GPUs, and its own."""
    return (fence for fence in FENCES.of(state).values() if fence.place.node == node)


def of_healing(state: State, number: int) -> Fence | None:
    return next((fence for fence in FENCES.of(state).values() if fence.healing == number), None)
