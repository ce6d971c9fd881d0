"""What the API asks of the runtime and of whoever started it: the whole boundary of `api/`, on one page.

`runtime.service.Runtime` is a Cluster; tests have a small one of their own. The API never changes `state`: it hands a
pure function of a kind of `core/` to `do`, which runs it against the newest state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from bireme.core.idle.streaks import Measured
from bireme.core.model.events import Event, Recorded
from bireme.core.model.refusals import Caller, Refusal
from bireme.core.state.state import State
from bireme.identity.sessions import Sessions
from bireme.ports import Clock, Engine, Experiments, Telemetry

Decide = Callable[[State, float], list[Event]]
"""(newest state, now) -> events, or raises Refusal."""


class Cluster(Protocol):
    @property
    def state(self) -> State: ...

    @property
    def engine(self) -> Engine: ...

    @property
    def clock(self) -> Clock: ...

    async def do(self, cause: str, decide: Decide, *, own: bool = False) -> Sequence[Recorded]:
        """Decides, applies and journals; returns once the events are on disk. Raises Refusal or JournalError.

        `own`: it is Bireme's to decide, whoever places the jobs (services).
        """

    async def do_all(self, cause: str, decides: Sequence[Decide]) -> list[Sequence[Recorded] | Refusal]:
        """Carries out many wishes in one commit, each as `do` does: the answer to each. Raises JournalError, and then
        none is done."""

    async def settled(self) -> None:
        """Returns when everything that the engine reported so far is in the state and on disk."""

    @property
    def unwritable(self) -> str:
        """Why the journal could not be written, while something waits for that; empty: all is written."""

    def subscribe(self, subscriber: Callable[[Sequence[Recorded]], None]) -> Callable[[], None]:
        """Calls `subscriber` with every committed group; returns the way out."""


class Work(Protocol):
    """What the loop did since the daemon started."""

    @property
    def passes(self) -> int:
        """Over the queue."""

    @property
    def passing_s(self) -> float:
        """What they took, all together."""

    @property
    def latest_pass_s(self) -> float: ...

    @property
    def commits(self) -> int:
        """Groups of events that were written."""

    @property
    def committing_s(self) -> float: ...


class Pages(Protocol):
    """The pages that people look at: a process beside the daemon."""

    @property
    def url(self) -> str:
        """Where they are, without a slash at the end; empty: nowhere."""

    @property
    def is_off(self) -> bool:
        """Whether an operator (or the settings) said that there are to be none."""

    async def open(self) -> str:
        """Has them served from now on, also after a restart; where. Raises PagesError."""

    async def close(self) -> None:
        """They are off until somebody has them opened again."""


class PagesError(Exception):
    """The pages cannot be served. The text says why and what to do."""


async def _no_page() -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the daemon says about itself, and does when asked to."""

    version: str
    pid: int
    up_since: float
    owner_uid: int
    operators: frozenset[str] = frozenset()
    max_body_bytes: int = 64 * 1024 * 1024
    reconfigure: Callable[[Caller], Awaitable[None]] | None = None
    shutdown: Callable[[bool], None] | None = None
    """Begins the end of the daemon; True: the jobs too."""
    notices: Callable[[], tuple[str, ...]] = tuple
    """What the configuration asks for and is not applied, one sentence each."""
    confined: Callable[[], dict[str, bool]] = dict
    """By memory, cpus and devices: whether this cluster is to hold jobs to theirs. Empty: its engine sees to it."""
    router_url: Callable[[], str] = str
    """What the addresses of services begin with, without a slash at the end; empty: there is no router."""
    router_hosts: Callable[[], Sequence[str]] = tuple
    """Host names that anybody's services may take, `*.` before a domain for all that is below it."""
    not_for_services: Callable[[], Sequence[str]] = tuple
    """Host names at which something else is found."""
    scaling: Callable[[str], Mapping[str, Any]] = field(default=lambda name: {})
    """What the autoscaler says of a service (by its name): `wanted`, `why`, `cause`, `figures`, `next_change_at`; empty
    where the number of its replicas does not change by itself."""
    router: Callable[[], Mapping[str, str | int]] = dict
    """Of the router that runs: `url`, `pid`, `release`; `warning`, what is not well with it; `problem`, where one is
    needed and does not answer."""
    routes: Callable[[str], bool] = field(default=lambda name: True)
    """Whether the router is known to have a service, by its name."""
    traffic: Callable[[str], Mapping[str, Any]] = field(default=lambda name: {})
    """What a service (by its name) was asked in the last hour, as curves; empty: nothing was heard of it."""
    lately: Callable[[str], Mapping[str, Any]] = field(default=lambda name: {})
    """What a service was asked in the last minute: `requests_s`, `errors_s`, `latency_p99_s`; empty as above."""
    telemetry: Callable[[], Telemetry | None] = field(default=lambda: None)
    """What is measured; None: nothing is, by the settings."""
    router_page: Callable[[], Awaitable[str]] = _no_page
    """What the router tells Prometheus; empty: there is none, or it does not answer."""
    work: Callable[[], Work | None] = field(default=lambda: None)
    """What the loop did; None: nobody counts it."""
    idle: Callable[[], Mapping[int, Measured]] = field(default=dict)
    """How the GPUs of jobs are used that the policy for idle ones looks at, by the job."""
    experiments: Callable[[], Experiments | None] = field(default=lambda: None)
    """Jobs' runs in experiment trackers; None: jobs are told of none, by the settings."""
    sessions: Sessions | None = None
    """Of people who look at the pages; None: nobody can log in."""
    pages: Pages | None = None
    """None: nobody serves any."""
    rules: Callable[[], str] = str
    """The folder with a site's own rules of diagnosis, which need not be there."""
    extra_config: dict[str, str] = field(default_factory=dict)
