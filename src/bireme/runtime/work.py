"""What the loop did since it started: passes over the queue, groups written. Counted by `service`, told to Prometheus.

Invariant: numbers only grow, but for `latest_pass_s`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    passes: int = 0
    passing_s: float = 0.0
    latest_pass_s: float = 0.0
    commits: int = 0
    committing_s: float = 0.0

    def passed(self, seconds: float) -> None:
        """A pass over the queue took so long."""
        self.passes += 1
        self.passing_s += seconds
        self.latest_pass_s = seconds

    def committed(self, seconds: float) -> None:
        """A group of events took so long until it was on disk."""
        self.commits += 1
        self.committing_s += seconds
