"""What has been seen of one service: a window for each thing that its policy counts, and when anybody last wanted it.

Who keeps it: the daemon's load keeper, from what the router and the replicas say; `bireme sim serve`, from its model.
It is never in the journal: after a restart there is an empty one, and `advise` is careful until it is full.
Invariant: there is a window for each target of the policy that it was last told, and no other.
"""

from __future__ import annotations

from bireme.core.model.serving.scaling import Measure, Scaling, ScalingTarget
from bireme.core.scaling.targets import targets_of
from bireme.core.scaling.windows import Window

CAREFUL_GAP_S = 15.0
"""A figure that is asked for now and then stands for at most so many seconds before it."""


class Seen:
    """The figures of one service, of late."""

    __slots__ = ("_polled_at", "active_at", "heard_at", "since", "troubles", "windows")

    def __init__(self, policy: Scaling, since: float) -> None:
        self.since = since
        """It has been watched from then on."""
        self.active_at: float | None = None
        """When a request was last there, or came and found no replica."""
        self.heard_at: float | None = None
        """Up to then it is known which requests there were."""
        self.windows: dict[ScalingTarget, Window] = {}
        self.troubles: dict[ScalingTarget, str] = {}
        """Why the latest figure of a target could not be had, in words."""
        self._polled_at: dict[ScalingTarget, float] = {}
        self.follow(policy)

    def follow(self, policy: Scaling) -> None:
        """The policy is this now. What was counted for a target that is still there is kept."""
        targets = targets_of(policy)
        kept = {(target.measure, target.name): window for target, window in self.windows.items()}
        self.windows = {
            target: window.resized(policy.stable_window_s)
            if (window := kept.get((target.measure, target.name))) is not None
            else Window(policy.stable_window_s)
            for target in targets
        }
        self.troubles = {target: words for target, words in self.troubles.items() if target in self.windows}
        self._polled_at = {target: at for target, at in self._polled_at.items() if target in self.windows}

    def requests(self, at: float, seconds: float, concurrency: float, rate: float) -> None:
        """In these seconds so many requests were in flight or queued on average, and so many came in each."""
        for target, window in self.windows.items():
            if target.measure is Measure.CONCURRENCY:
                window.record(at, concurrency, seconds)
            elif target.measure is Measure.RATE:
                window.record(at, rate, seconds)
        self.heard_at = at
        if concurrency > 0.0 or rate > 0.0:
            self.touch(at)

    def no_requests(self, until: float, since: float | None = None) -> None:
        """Since the last that was said of requests there were none. `since`: before that, nothing is known."""
        begins = self.since if since is None else max(self.since, since)
        for target, window in self.windows.items():
            if target.measure in (Measure.CONCURRENCY, Measure.RATE):
                window.fill(begins, until, 0.0)
        self.heard_at = until

    def touch(self, at: float) -> None:
        """Somebody wants it: a request is there, or found no replica."""
        self.active_at = at

    def figure(self, target: ScalingTarget, at: float, total: float) -> None:
        """What was asked for just now: of a metric the sum over all replicas, of a query its answer."""
        if (window := self.windows.get(target)) is None:
            return
        before = self._polled_at.get(target)
        window.record(at, total, min(at - before, CAREFUL_GAP_S) if before is not None else 1.0)
        self._polled_at[target] = at
        self.troubles.pop(target, None)
        if total > 0.0 and target.measure is Measure.QUERY:
            self.touch(at)

    def trouble(self, target: ScalingTarget, words: str) -> None:
        """The figure could not be had. It is missing: nothing is made up for it."""
        if target in self.windows:
            self.troubles[target] = words
