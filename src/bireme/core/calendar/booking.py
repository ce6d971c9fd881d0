"""A slot in the calendar: what a waiting job is promised, and when."""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.model.resources import NodeShare


@dataclass(frozen=True, slots=True)
class Booking:
    """A slot: these sizes of these nodes from `begin` until `end`."""

    begin: float
    end: float
    shares: tuple[NodeShare, ...]
    whole_nodes: bool = False
    job_id: int = 0
    """Whose it is, of which user, and where."""
    uid: int = 0
    partition: str = ""
    account: str = ""
