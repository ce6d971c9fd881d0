"""A cluster's planning input as one file: what `bireme snapshot` saves and `bireme plan` plans again.

Lines of JSON: a heading (when, by which version, and once it was planned, what was decided), then the state as
`snapshots` writes it. What planning does not read is left out: scripts, environments, arguments, paths, comments,
steps, and slurm.conf's keys that are not about scheduling. Names of users, accounts and jobs stay unless they are to be
replaced; names of nodes, partitions and QOS always stay.
Invariant: of a JobSpec the fields are in it that are declared as planned with (`core/model/field_rules`), no others.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from bireme.core.accounting.book import AccountBook
from bireme.core.model.accounts import ROOT
from bireme.core.model.cluster import ClusterConfig, PartitionConfig
from bireme.core.model.jobs import RULES, ArrayWaiting, Ending, Finished, Job, JobSpec, Owner, Phase
from bireme.core.model.reservations import Reservation
from bireme.core.model.serving.probes import Probes
from bireme.core.priority.order import reprioritise
from bireme.core.state.state import ArrayTally, State
from bireme.store import codec
from bireme.store.snapshots import decode_lines, encode_state

FORMAT = 1
_DEFAULTS = {each.name: each.default for each in fields(JobSpec) if not RULES[each.name].planned}
"""What takes the place of the fields that the planner does not read."""
_SCHEDULING_KEYS = ("Scheduler", "Priority", "Preempt", "Select", "Dependency", "Topology", "Resv", "Licenses")


class NotASnapshotError(ValueError):
    """The file is something else, or was cut short; the message says which."""


@dataclass(frozen=True, slots=True)
class PlanningInput:
    state: State
    now: float
    version: str
    decided: dict[str, Any] | None
    """What was decided when it was recorded (`slurm/records/plans.py`)."""


def encode_input(state: State, now: float, version: str, *, anonymise: bool = False) -> bytes:
    heading = {"bireme_snapshot": FORMAT, "now": now, "version": version}
    return codec.dumps(heading) + b"\n" + encode_state(_scrubbed(state, anonymise)) + b"\n"


def with_decided(data: bytes, decided: dict[str, Any]) -> bytes:
    """A file of planning input with these decisions in its heading."""
    heading, _, rest = data.partition(b"\n")
    return codec.dumps({**_heading(heading), "decided": decided}) + b"\n" + rest


def decode_input(data: bytes) -> PlanningInput:
    """Raises NotASnapshotError."""
    heading, _, rest = data.partition(b"\n")
    head = _heading(heading)
    try:
        state = decode_lines(rest)
        now = float(head["now"])
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RuntimeError) as error:
        raise NotASnapshotError(f"the file is cut short or damaged: {error}") from error
    reprioritise(state, now)
    return PlanningInput(state, now, str(head.get("version", "?")), head.get("decided"))


def _heading(line: bytes) -> dict[str, Any]:
    try:
        head = codec.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or "bireme_snapshot" not in head:
        raise NotASnapshotError("it was not made by `bireme snapshot`")
    if head["bireme_snapshot"] != FORMAT:
        raise NotASnapshotError(f"it has format {head['bireme_snapshot']}; this version reads format {FORMAT}")
    return head


# -- what is left out ------------------------------------------------------------------------------------------------


def _scrubbed(state: State, anonymise: bool) -> State:
    names = _Names() if anonymise else None
    specs: dict[int, JobSpec] = {}
    jobs: dict[int, Job] = {}
    for job in state.jobs.values():
        spec = specs.get(id(job.spec))
        if spec is None:
            spec = specs[id(job.spec)] = _clean(job.spec, names)
        phase = _clean_phase(job.phase) if names else job.phase
        jobs[job.id] = replace(job, spec=_ranked(job, spec), phase=phase, steps={}, mirrored=False)
    return replace(
        state,
        jobs=jobs,
        arrays=_tallies(state) | state.arrays,
        shelves={},
        services={},
        config=_clean_config(state.config, names),
        accounts=names.book(state.accounts) if names else state.accounts,
        reservations={name: names.reservation(each) for name, each in state.reservations.items()}
        if names
        else state.reservations,
        nodes={name: replace(node, note=None) for name, node in state.nodes.items()} if names else state.nodes,
        partitions={name: names.partition(each) for name, each in state.partitions.items()}
        if names
        else state.partitions,
    )


def _tallies(state: State) -> dict[int, ArrayTally]:
    """Of arrays whose tasks another scheduler counts: here everything is planned, and so they are counted, too."""
    tallies: dict[int, ArrayTally] = {}
    for job in state.jobs.values():
        if not job.mirrored or job.array is None:
            continue
        tally = tallies.setdefault(job.array_job_id or job.id, ArrayTally(total=0))
        if isinstance(job.array, ArrayWaiting):
            tally.total += len(job.array.waiting)
            continue
        task = job.array.task_id
        tally.total += 1
        if job.allocation is not None:
            tally.begun[task] = job.submitted_at
        if isinstance(job.phase, Finished):
            (tally.succeeded if job.phase.outcome.state == "COMPLETED" else tally.failed).add(task)
    return tallies


def _ranked(job: Job, spec: JobSpec) -> JobSpec:
    """A job that another scheduler has ranked keeps its rank, though here everything is planned."""
    return replace(spec, priority=job.priority) if job.mirrored and job.priority else spec


def _clean(spec: JobSpec, names: _Names | None) -> JobSpec:
    cleaned: dict[str, Any] = dict(_DEFAULTS)
    if names is not None:
        cleaned |= {
            "name": names.of("job", spec.name),
            "owner": names.owner(spec.owner),
            "account": names.account(spec.account),
        }
    if spec.replica is not None:  # whose it is counts, how it is asked whether it is well does not
        service = names.of("job", spec.name) if names is not None else spec.replica.service
        cleaned["replica"] = replace(spec.replica, service=service, probes=Probes())
    return replace(spec, **cleaned)


def _clean_phase(phase: Phase) -> Phase:
    if not isinstance(phase, Ending | Finished):
        return phase
    return replace(phase, outcome=replace(phase.outcome, by_uid=None))


def _clean_config(config: ClusterConfig, names: _Names | None) -> ClusterConfig:
    raw = {key: value for key, value in config.raw.items() if key.startswith(_SCHEDULING_KEYS)}
    settings = replace(config.settings, prolog=(), epilog=(), task_prolog="", task_epilog="")
    partitions = tuple(names.partition(each) for each in config.partitions) if names else config.partitions
    return replace(config, raw=raw, source="", settings=settings, partitions=partitions)


class _Names:
    """Other names, the same one for the same thing: `user1`, `account2`. root stays root: rules know it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | int], int] = {}

    def number(self, kind: str, name: str | int) -> int:
        return self._known.setdefault((kind, name), 1 + sum(1 for each, _ in self._known if each == kind))

    def of(self, kind: str, name: str) -> str:
        return name if name in ("", ROOT) else f"{kind}{self.number(kind, name)}"

    def account(self, name: str) -> str:
        return self.of("account", name)

    def partition(self, partition: PartitionConfig) -> PartitionConfig:
        allowed, groups = partition.allow_accounts, partition.allow_groups
        return replace(
            partition,
            allow_accounts=None if allowed is None else tuple(self.account(each) for each in allowed),
            deny_accounts=tuple(self.account(each) for each in partition.deny_accounts),
            allow_groups=None if groups is None else tuple(self.of("group", each) for each in groups),
        )

    def owner(self, owner: Owner) -> Owner:
        uid = 0 if owner.uid == 0 else 1000 + self.number("user", owner.user)
        return Owner(
            uid=uid,
            gid=self.gid(owner.gid),
            user=self.of("user", owner.user),
            group=self.of("group", owner.group),
            groups=tuple(self.gid(each) for each in owner.groups),
        )

    def gid(self, gid: int) -> int:
        return 0 if gid == 0 else 5000 + self.number("gid", gid)

    def reservation(self, reservation: Reservation) -> Reservation:
        return replace(
            reservation,
            users=tuple(self._signed("user", each) for each in reservation.users),
            accounts=tuple(self._signed("account", each) for each in reservation.accounts),
            groups=tuple(self._signed("group", each) for each in reservation.groups),
            gids=tuple(self.gid(each) for each in reservation.gids),
        )

    def _signed(self, kind: str, name: str) -> str:
        """`-alice`: everybody but her."""
        return f"-{self.of(kind, name[1:])}" if name.startswith("-") else self.of(kind, name)

    def book(self, book: AccountBook) -> AccountBook:
        accounts = {
            self.account(name): replace(
                account,
                name=self.account(name),
                description="",
                organization="",
                coordinators=tuple(self.of("user", each) for each in account.coordinators),
            )
            for name, account in book.accounts.items()
        }
        users = {
            self.of("user", name): replace(
                user,
                name=self.of("user", name),
                default_account=self.account(user.default_account),
                default_wckey="",
            )
            for name, user in book.users.items()
        }
        associations = {
            number: replace(
                each,
                account=self.account(each.account),
                user=self.of("user", each.user),
                parent=self.account(each.parent),
            )
            for number, each in book.associations.items()
        }
        return AccountBook(accounts, users, book.qos, associations, book.next_association_id, book.next_qos_id)
