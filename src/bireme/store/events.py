"""Events <-> rows of the journal: kind, job id and JSON.

Equal job specifications are shared while reading: a hundred thousand `sbatch` of one script become one object in
memory, and their owners and resource requests are shared even when the rest differs.
Invariant: every class of `Event` is known here by its name, without being listed.
"""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from bireme.core.model.events import ArrayPartSplit, ArrayTaskSplit, Event, JobCancelled, JobSubmitted
from bireme.core.model.jobs import JobSpec, Outcome, Owner, ResourceRequest
from bireme.store import codec
from bireme.store.plain import to_plain

KINDS: dict[str, type[Event]] = {cls.__name__: cls for cls in typing.get_args(Event)}

GIVE_IDS = (JobSubmitted, ArrayTaskSplit, ArrayPartSplit)
"""Events that give out a new job id."""
GIVE_IDS_KINDS = tuple(cls.__name__ for cls in GIVE_IDS)

_RAW_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SHARED_AT_MOST = 50_000
_WRITTEN_AT_MOST = 2_000


class EventWriter:
    """Encodes events. A specification that many jobs share, or how they ended, is written out once and then copied."""

    def __init__(self) -> None:
        self._specs: dict[int, tuple[JobSpec, msgspec.Raw]] = {}
        """By identity: the specification is kept with it, so that no other can take its place."""
        self._outcome: tuple[Outcome, msgspec.Raw] | None = None
        """Of the last that was cancelled: those that are cancelled together end alike."""

    def encode(self, event: Event) -> tuple[str, int | None, bytes]:
        """(kind, job id or None, data)."""
        kind, job_id = type(event).__name__, getattr(event, "job_id", None)
        try:
            if isinstance(event, JobSubmitted):
                plain = to_plain(event, ("spec",))
                return kind, job_id, msgspec.json.encode({"spec": self._written(event.spec), **plain})
            if isinstance(event, JobCancelled):
                plain = to_plain(event, ("outcome",))
                return kind, job_id, msgspec.json.encode({**plain, "outcome": self._written_outcome(event.outcome)})
        except UnicodeEncodeError:
            pass  # see `codec.dumps`
        return kind, job_id, codec.encode(event)

    def _written_outcome(self, outcome: Outcome) -> msgspec.Raw:
        known = self._outcome
        if known is None or known[0] != outcome:
            known = self._outcome = (outcome, msgspec.Raw(codec.encode(outcome)))
        return known[1]

    def _written(self, spec: JobSpec) -> msgspec.Raw:
        known = self._specs.get(id(spec))
        if known is None:
            if len(self._specs) >= _WRITTEN_AT_MOST:
                self._specs.clear()
            known = self._specs[id(spec)] = (spec, msgspec.Raw(codec.encode(spec)))
        return known[1]


class SpecPool:
    """One object for equal specifications. Forgets everything when it grows too large: it is only a saving."""

    def __init__(self) -> None:
        self._specs: dict[bytes, JobSpec] = {}
        self._owners: dict[Owner, Owner] = {}
        self._requests: dict[ResourceRequest, ResourceRequest] = {}

    def decode(self, data: bytes) -> JobSpec:
        spec = self._specs.get(data)
        if spec is None:
            if len(self._specs) >= _SHARED_AT_MOST:
                self.clear()
            spec = self._specs[data] = self.share(codec.decode(JobSpec, data))
        return spec

    def clear(self) -> None:
        self._specs.clear()
        self._owners.clear()
        self._requests.clear()

    def share(self, spec: JobSpec) -> JobSpec:
        """Replaces the parts of `spec` by equal ones seen before. Safe: they are immutable and equal."""
        owner = self._owners.setdefault(spec.owner, spec.owner)
        request = self._requests.setdefault(spec.resources, spec.resources)
        object.__setattr__(spec, "owner", owner)
        object.__setattr__(spec, "resources", request)
        return spec


class EventReader:
    """Decodes rows; raises ValueError, TypeError or KeyError on what it cannot understand."""

    def __init__(self) -> None:
        self._pool = SpecPool()

    def decode(self, kind: str, data: bytes) -> Event:
        cls = KINDS.get(kind)
        if cls is None:
            raise ValueError(f"unknown kind of event {kind!r}")
        if kind in ("JobSubmitted", "JobUpdated"):
            return self._with_spec(cls, data)
        return codec.decode(cls, data)

    def _with_spec(self, cls: type[Event], data: bytes) -> Event:
        fields: dict[str, Any] = _RAW_FIELDS.decode(data)
        spec = self._pool.decode(bytes(fields.pop("spec")))
        return codec.from_plain(cls, {name: codec.loads(bytes(raw)) for name, raw in fields.items()}, spec=spec)
