"""Every event and the whole state survive the way to disk and back; what is wrong is named."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import deque
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bireme.core.jobs.keys import KEYS
from bireme.core.lifecycle.registry import SHELVES
from bireme.core.model.events import Event
from bireme.core.model.jobs import Job, JobSpec, Owner, ResourceRequest, Running
from bireme.core.model.resources import Allocation, GresRequest
from bireme.core.state.shelf import Shelf
from bireme.core.state.state import State
from bireme.store import codec, snapshots
from bireme.store.events import KINDS, EventReader, EventWriter

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=5),
    int: st.integers(-(2**40), 2**40),
    float: st.floats(allow_nan=False, allow_infinity=False, width=32),
    bool: st.booleans(),
    types.NoneType: st.none(),
}


@cache
def values_of(hint: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Any value a type hint of the model allows. Made once: to make them costs more than to draw from them."""
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    few = 0 if depth > 5 else 2
    if hint in SCALARS:
        return SCALARS[hint]
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(part, depth + 1) for part in arguments])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*[values_of(part, depth) for part in arguments])
    if origin in (tuple, list, set, frozenset, deque):
        item = st.deferred(lambda: values_of(arguments[0], depth + 1))
        return st.lists(item, max_size=few).map(origin)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1], depth + 1), max_size=few)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    hints = typing.get_type_hints(hint)
    fields = {field.name: values_of(hints[field.name], depth + 1) for field in dataclasses.fields(hint)}
    return st.deferred(lambda: st.builds(hint, **fields))


@pytest.mark.parametrize("cls", typing.get_args(Event), ids=lambda cls: cls.__name__)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_event_is_read_back_as_it_was_written(cls: type, data: st.DataObject) -> None:
    event = data.draw(values_of(cls))
    kind, job_id, written = EventWriter().encode(event)
    assert EventReader().decode(kind, written) == event
    assert job_id == getattr(event, "job_id", None)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(jobs=st.lists(values_of(Job), max_size=3, unique_by=lambda job: job.id))
def test_jobs_in_any_phase_survive_a_snapshot(jobs: list[Job]) -> None:
    written = snapshots.encode_state(_state(jobs))
    assert _read(written) == {job.id: job for job in jobs}


def _state(jobs: list[Job]) -> State:
    return State(jobs={job.id: job for job in jobs}, next_job_id=99, shelves={"keys": {"k": 1}}, seq=7)


def _read(written: bytes) -> dict[int, Job]:
    # Drawn allocations name nodes that do not exist, which reindexing rightly refuses: look before it.
    read: list[State] = []
    original = State.reindex
    State.reindex = lambda self: read.append(self)  # type: ignore[method-assign]
    try:
        state = snapshots.decode_state(snapshots.pack(written))
    finally:
        State.reindex = original  # type: ignore[method-assign]
    assert read == [state]
    assert (state.next_job_id, state.shelves, state.seq) == (99, {"keys": {"k": 1}}, 7)
    return state.jobs


def test_each_field_of_the_state_is_stored_or_known_to_be_derived() -> None:
    indexes = {
        "specs",
        "pending",
        "holding",
        "finished",
        "array_members",
        "array_tasks",
        "het_members",
        "timetable",
        "serving",
        "leftovers",
    }
    weighed = {"partition_priorities", "priority_basis", "priority_columns"}
    of_this_run = {"verdicts", "planned_at", "awake_since"}
    derived = indexes | weighed | of_this_run | {"occupancy", "empty", "serviceable", "fabric", "ledger", "ever_fits"}
    assert derived == snapshots.DERIVED, "a new field: does it belong into snapshots.STORED, or is it derived?"


@dataclasses.dataclass(frozen=True, slots=True)
class Berth:
    name: str
    taken_by: tuple[int, ...] = ()


def test_the_things_of_a_new_kind_survive_a_snapshot_without_a_field_of_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    berths, counts = Shelf("berths", str, Berth), Shelf("counts", int, float)
    monkeypatch.setattr(snapshots, "SHELVES", (*SHELVES, berths, counts))
    state = State()
    berths.put(state, "north", Berth("north", (1, 2)))
    counts.put(state, 7, 0.5)
    read = snapshots.decode_state(snapshots.pack(snapshots.encode_state(state)))
    assert berths.of(read) == {"north": Berth("north", (1, 2))}
    assert counts.of(read) == {7: 0.5}
    assert read.shelves == state.shelves


def test_a_shelf_with_nothing_on_it_is_no_part_of_the_state() -> None:
    shelf, state = Shelf("berths", str, Berth), State()
    assert not shelf.of(state)
    shelf.put(state, "north", Berth("north"))
    shelf.drop(state, "north")
    assert state.shelves == {}


def test_a_snapshot_of_before_the_shelves_is_read() -> None:
    """The keys of submissions were a field of the state, and were written where their shelf is now."""
    state = snapshots.decode_lines(b'{"next_job_id":9,"keys":{"k":1},"seq":7,"format":1,"specs":0,"jobs":0}')
    assert (KEYS.of(state), state.seq) == ({"k": 1}, 7)


def test_equal_specifications_are_one_object_after_reading() -> None:
    events = [
        KINDS["JobSubmitted"](job_id=n, spec=_spec(name=name), priority=1, eligible_at=None, reasons=())
        for n, name in enumerate("aab")
    ]
    reader = EventReader()
    first, second, other = (reader.decode("JobSubmitted", EventWriter().encode(event)[2]) for event in events)
    assert first.spec is second.spec
    assert other.spec is not first.spec
    assert other.spec.owner is first.spec.owner


def _spec(**fields: Any) -> JobSpec:
    return JobSpec(owner=Owner(uid=1, gid=1, user="ann", groups=(1, 2)), **fields)


def test_bytes_that_are_not_text_survive() -> None:
    spec = _spec(argv=("caf\udce9",), work_dir="/data/\udcff")
    assert codec.decode(JobSpec, codec.encode(spec)) == spec


def test_fields_of_a_later_version_are_ignored() -> None:
    assert codec.decode(Owner, b'{"uid":1,"gid":2,"user":"ann","shoe_size":43}') == Owner(uid=1, gid=2, user="ann")


def test_defaults_are_not_written() -> None:
    assert codec.encode(ResourceRequest(nodes_min=2)) == b'{"nodes_min":2}'


OWNER = {"uid": 1, "gid": 1, "user": "ann"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"owner": OWNER, "resources": {"nodes_min": "2"}}, "resources.nodes_min: expected a whole number, got text"),
        ({"owner": OWNER, "argv": ["a", 1]}, "argv[1]: expected text, got a whole number"),
        ({"owner": OWNER, "argv": "a"}, "argv: expected a list, got text"),
        ({"owner": OWNER, "hold": 1}, "hold: expected true or false, got a whole number"),
        ({"owner": OWNER, "nice": True}, "nice: expected a whole number, got true or false"),
        ({"owner": OWNER, "color": 1}, "color: JobSpec has no such field"),
        ({"owner": OWNER, "kind": "x"}, "kind: 'x' is none of batch, interactive, pods"),
        ({"owner": OWNER, "array": {"throttle": 1}}, "array.task_ids: is missing"),
        ({}, "owner: is missing"),
        ([], "expected an object, got a list"),
        (
            {"owner": OWNER, "resources": {"gres_per_node": [{"name": "gpu", "type": None, "count": 1.5}]}},
            "resources.gres_per_node[0].count: expected a whole number, got a number",
        ),
    ],
)
def test_what_came_over_the_api_is_checked_and_the_wrong_field_named(value: Any, message: str) -> None:
    with pytest.raises(codec.WrongShapeError) as caught:
        codec.convert(JobSpec, value)
    assert str(caught.value) == message


def test_checked_reading_accepts_what_was_written() -> None:
    gpus = (GresRequest("gpu", None, 8),)
    spec = _spec(resources=ResourceRequest(gres_per_node=gpus), step_defaults=(("A", "b"),), begin_at=3)
    assert codec.convert(JobSpec, codec.loads(codec.encode(spec))) == spec


def test_a_class_that_is_not_named_is_found_by_its_fields() -> None:
    job = Job(1, _spec(), 5.0, Running(Allocation(1, 1, "main", ()), 6.0))
    written = codec.loads(codec.encode(job))
    assert written["phase"].pop("_") == "Running"
    assert codec.convert(Job, written) == job
    written["phase"]["color"] = "red"
    with pytest.raises(codec.WrongShapeError, match=r"phase: expected an object whose '_' is one of Pending, .*"):
        codec.convert(Job, written)
