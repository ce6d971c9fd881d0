"""Slurm's JSON becomes sightings: the words of a real 22.05, the same in the forms of later versions, and rubbish."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.engines.slurm import recorded

from bireme.core.model.jobs import ArrayTask, DependencyKind, Finished, JobKind, Pending, Running, Suspended
from bireme.core.model.reasons import ReasonKind
from bireme.core.model.resources import ExitStatus, GresRequest, GresShare
from bireme.core.model.sightings import Sighting
from bireme.engines.slurm.accounting import ended_job, told
from bireme.engines.slurm.cluster import condition
from bireme.engines.slurm.jobs import JobReader, standing
from bireme.engines.slurm.values import exit_status, number, text, words
from bireme.slurm.hostlist import compress


class Slurm:
    """What one version of it wrote."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.config = recorded.cluster(version)
        self.reader = JobReader(self.config, str)
        self.jobs = recorded.jobs(version)

    def see(self, name: str) -> Sighting:
        return self.reader.sighting(self.jobs[name])

    def listed(self, name: str) -> list[dict[str, Any]]:
        found = recorded.document("squeue", self.version)["jobs"]
        return [job for job in found if job["name"] == name]


WRITTEN = {version: Slurm(version) for version in recorded.VERSIONS}
OLD = WRITTEN["22.05"]


@pytest.fixture(params=recorded.VERSIONS)
def slurm(request: pytest.FixtureRequest) -> Slurm:
    return WRITTEN[request.param]


def test_a_running_job_holds_what_slurm_says_node_by_node(slurm: Slurm) -> None:
    phase = slurm.see("running").phase
    assert isinstance(phase, Running)
    shares = phase.allocation.shares
    assert [(share.cpus, share.memory_mib) for share in shares] == [(10, 5120), (2, 1024)]
    assert compress(share.node for share in shares) == slurm.jobs["running"]["nodes"]
    assert all(len(share.cpu_ids) == share.cpus for share in shares)
    assert [share.gres for share in shares] == [(GresShare("gpu", "a100", 1, (0,)),)] * 2
    assert (phase.allocation.partition, phase.allocation.generation) == ("gpu", 1)


def test_what_was_asked_for(slurm: Slurm) -> None:
    spec = slurm.see("running").spec
    asked = spec.resources
    assert (asked.nodes_min, asked.ntasks, asked.cpus_per_task, asked.memory_per_cpu_mib) == (2, 6, 2, 512)
    assert asked.gres_per_node == (GresRequest("gpu", None, 1),)
    assert (spec.nice, spec.time_limit_s, spec.owner.user, spec.kind) == (50, 3600, "root", JobKind.BATCH)
    whole = slurm.see("whole").spec.resources
    assert (whole.exclusive, whole.constraint, whole.exclude) == (True, "gpu", ("n1",))
    assert whole.gres_per_job == (GresRequest("gpu", None, 4),)


def test_an_array_and_its_tasks(slurm: Slurm) -> None:
    array = slurm.see("array")
    assert (array.waiting, array.task) == ((3, 4, 5), None)
    assert array.spec.array is not None
    assert array.spec.array.throttle == 2
    tasks = {slurm.reader.sighting(job).task for job in slurm.listed("array")}
    assert tasks == {None, ArrayTask(array.job_id, 1), ArrayTask(array.job_id, 2)}


def test_components_of_a_heterogeneous_job_know_their_leader(slurm: Slurm) -> None:
    components = [
        slurm.reader.sighting(job) for job in recorded.document("squeue", slurm.version)["jobs"] if job["name"] == "het"
    ]
    leader = min(each.job_id for each in components)
    assert {each.het_job_id for each in components} == {leader}
    assert sorted(each.spec.het_component or 0 for each in components) == [0, 1]


def test_why_jobs_wait(slurm: Slurm) -> None:
    kinds = {}
    for name in ("array", "after", "held", "later"):
        place = standing(slurm.jobs[name], slurm.see(name))
        assert place is not None
        kinds[name] = place.reasons[0].kind
    assert kinds == {
        "array": ReasonKind.JOB_ARRAY_TASK_LIMIT,
        "after": ReasonKind.DEPENDENCY,
        "held": ReasonKind.JOB_HELD_USER,
        "later": ReasonKind.BEGIN_TIME,
    }
    held, after = slurm.see("held"), slurm.see("after")
    assert isinstance(held.phase, Pending)
    assert held.phase.held_by == "user"
    assert held.phase.eligible_at is None
    assert held.spec.partitions == ("gpu", "all")
    (dependency,) = after.spec.dependencies.items
    assert (dependency.kind, dependency.job_id) == (DependencyKind.AFTER_ANY, slurm.jobs["running"]["job_id"])
    assert standing(slurm.jobs["running"], slurm.see("running")) is None


def test_a_reason_that_only_slurm_has_keeps_its_word() -> None:
    place = standing(OLD.jobs["toobig"], OLD.see("toobig"))
    assert place is not None
    assert (place.reasons[0].kind, place.reasons[0].fact("word")) == (ReasonKind.OTHER, "PartitionConfig")


def test_how_jobs_ended(slurm: Slurm) -> None:
    ends = {name: slurm.see(name).phase for name in ("finished", "failed", "killed", "cancelled")}
    outcomes = {name: phase.outcome for name, phase in ends.items() if isinstance(phase, Finished)}
    assert {name: outcome.state for name, outcome in outcomes.items()} == {
        "finished": "COMPLETED",
        "failed": "FAILED",
        "killed": "FAILED",
        "cancelled": "CANCELLED",
    }
    assert outcomes["failed"].status == ExitStatus(3)
    assert outcomes["killed"].status == ExitStatus(0, 9)
    cancelled = ends["cancelled"]
    assert isinstance(cancelled, Finished)
    assert cancelled.allocation is None
    assert cancelled.started_at is None


def test_a_suspended_job(slurm: Slurm) -> None:
    phase = slurm.see("stopped").phase
    assert isinstance(phase, Suspended)
    assert phase.since > phase.started_at
    assert phase.suspended_s == 0


def test_the_tag_of_a_submission_is_no_part_of_the_comment(slurm: Slurm) -> None:
    finished = slurm.see("finished")
    assert (finished.key, finished.spec.comment) == ("abc123", "mine")


@pytest.mark.parametrize("job", recorded.document("squeue")["jobs"], ids=lambda job: f"{job['job_id']}-{job['name']}")
def test_later_versions_say_the_same(job: dict[str, Any]) -> None:
    assert OLD.reader.sighting(recorded.modernised(job)) == OLD.reader.sighting(job)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(OLD.jobs["running"])), junk), st.sampled_from(sorted(OLD.jobs)))
def test_rubbish_in_any_field_is_no_crash(spoilt: dict[str, Any], name: str) -> None:
    job = OLD.jobs[name] | spoilt
    try:
        seen = OLD.reader.sighting(job)
    except ValueError:
        assert not number(job["job_id"])
    else:
        standing(job, seen)


# -- the cluster -----------------------------------------------------------------------------------------------------


def test_the_cluster_is_what_slurm_says(slurm: Slurm) -> None:
    config = slurm.config
    assert (config.name, len(config.nodes), [part.name for part in config.partitions]) == (
        "rehearsal",
        8,
        ["gpu", "cpu", "all"],
    )
    node = next(node for node in config.nodes if node.name == "n1")
    assert (node.cpus, node.sockets, node.cores_per_socket, node.threads_per_core) == (16, 2, 4, 2)
    assert [(pool.name, pool.type, len(pool.devices)) for pool in node.gres] == [("gpu", "a100", 4)]
    assert config.settings.default_memory_per_cpu_mib == 512
    default = config.default_partition()
    assert default is not None
    assert (default.name, default.default_time_s) == ("gpu", 3600)
    assert "NEXT_JOB_ID" not in config.raw, "it would change with every job"


def test_nodes_that_are_drained_or_gone(slurm: Slurm) -> None:
    conditions = {each.node: each for each in map(condition, recorded.document("nodes", slurm.version)["nodes"])}
    assert (conditions["c2"].drained, conditions["c2"].note) == (True, "bad disk")
    assert (conditions["n1"].health, conditions["n1"].drained, conditions["n1"].version[:5]) == (
        "UP",
        False,
        slurm.version,
    )
    later = {"name": "x", "state": ["DOWN", "NOT_RESPONDING", "DRAIN"], "version": "24.05.1"}
    assert (condition(later).health, condition(later).drained, condition(later).version) == ("LOST", True, "24.05.1")
    assert condition({"name": "x", "state": ["DOWN"]}).health == "DOWN"


# -- the accounting database -----------------------------------------------------------------------------------------


def accounts(version: str) -> dict[str, Sighting | None]:
    return {job["name"]: ended_job(job, lambda user: (7, 7)) for job in recorded.document("sacct", version)["jobs"]}


def test_only_ended_jobs_are_history(slurm: Slurm) -> None:
    found = accounts(slurm.version)
    assert found["running"] is None
    finished = found["finished"]
    assert finished is not None
    assert isinstance(finished.phase, Finished)
    assert finished.phase.outcome.state == "COMPLETED"
    assert finished.spec.owner.uid == 7
    assert [(step.id, step.spec.name, step.outcome, step.ntasks) for step in finished.steps] == [
        (0, "true", "COMPLETED", 2)
    ]
    assert finished.phase.allocation is not None
    assert finished.phase.allocation.tres()["gres/gpu"] == 2


def test_the_database_adds_to_what_the_queue_told(slurm: Slurm) -> None:
    database = accounts(slurm.version)["finished"]
    assert database is not None
    both = told(slurm.see("finished"), database)
    assert both.spec == slurm.see("finished").spec
    assert both.steps == database.steps


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        ("5", 5),
        ({"set": True, "infinite": False, "number": 5}, 5),
        ({"set": False, "infinite": False, "number": 5}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
        (None, None),
        (0xFFFFFFFE, None),
        ("x", None),
        (True, None),
    ],
)
def test_numbers(value: Any, expected: int | None) -> None:
    assert number(value) == expected


def test_words_texts_and_statuses() -> None:
    assert words("mixed") == ["MIXED"]
    assert words(["IDLE", "DRAIN"]) == ["IDLE", "DRAIN"]
    assert words(None) == []
    assert words("MIXED+DRAIN") == ["MIXED", "DRAIN"]
    assert text("(null)") == ""
    assert text(None) == ""
    assert text(["a", "b"]) == "a,b"
    assert exit_status(768) == ExitStatus(3)
    assert exit_status(9) == ExitStatus(0, 9)
    assert exit_status(139) == ExitStatus(0, 11)
    assert exit_status({"return_code": 2, "signal": {"signal_id": 15}}) == ExitStatus(2, 15)
