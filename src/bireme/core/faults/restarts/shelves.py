"""Where it lies in the state which jobs are looked into, and what is to happen to jobs."""

from __future__ import annotations

from bireme.core.model.healing.restarts import JobsAway, NodesBack
from bireme.core.state.shelf import Shelf

INQUESTS: Shelf[int, float] = Shelf("inquests", int, float)
"""By job: since when the end of its start awaits its verdict."""
TAKEN_BACK: Shelf[int, int] = Shelf("restarts_taken_back", int, int)
"""Jobs whose restart people have taken back, with the number of that healing: they are to end."""
FOUND: Shelf[int, str] = Shelf("jobs_to_heal", int, str)
"""Jobs that run, and of which something is found that a restart may mend: the key of the finding."""
HELD_UP: Shelf[str, str] = Shelf("jobs_held_up", str, str)
"""Keys of findings about GPUs that are slower than the gangs that they belong to."""
LOOKED_AT: Shelf[int, float] = Shelf("jobs_held_up_looked_at", int, float)
"""Jobs of which it is reckoned whether a restart without a slow GPU is worth it, and when: in that turn."""
KEPT_FROM: Shelf[str, JobsAway] = Shelf("nodes_kept_from", str, JobsAway)
"""By node: jobs whose restarts are kept from it until it is well again."""
FORGIVEN: Shelf[int, NodesBack] = Shelf("nodes_forgiven", int, NodesBack)
"""By job: nodes that it may have again; the job is updated in that turn, or when it waits again."""
