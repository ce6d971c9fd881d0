"""The factors of a priority, against what Slurm 22.05's sprio printed for the same cluster, jobs and moments.

The cluster: n1-n4 (16 CPUs, two a core, 32000 MB, 4 GPUs) and c1-c2 (8 CPUs, 16000 MB); partitions gpu (factor 3,
default time one hour), cpu (1, no limit), all (7, one day). A job's row was read off a real controller.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from bireme.core.accounting.book import AccountBook
from bireme.core.accounting.usage import BILLING, Meter, Usages
from bireme.core.model.accounts import Account, Association, Qos, User
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, PrioritySettings, Settings
from bireme.core.model.events import AccountsChanged
from bireme.core.model.jobs import Job, JobSpec, Owner, Pending, ResourceRequest
from bireme.core.model.resources import GresPool, GresRequest
from bireme.core.priority.columns import Columns
from bireme.core.priority.multifactor import HIGHEST, Basis, Parts
from bireme.core.priority.order import is_ranked, parts_of, priority_of, rank, reprioritise

NOW = 1_794_724_078.0
GPU_NODES = tuple(
    NodeConfig(
        name=f"n{number}",
        cpus=16,
        sockets=2,
        cores_per_socket=4,
        threads_per_core=2,
        memory_mib=32_000,
        gres=(GresPool("gpu", "a100", 4),),
    )
    for number in range(1, 5)
)
CPU_NODES = tuple(NodeConfig(name=f"c{n}", cpus=8, cores_per_socket=8, memory_mib=16_000) for n in (1, 2))
PARTITIONS = (
    PartitionConfig(
        name="gpu",
        nodes=("n1", "n2", "n3", "n4"),
        max_time_s=7 * 86_400,
        default_time_s=3600,
        priority_job_factor=3,
    ),
    PartitionConfig(name="cpu", nodes=("c1", "c2")),
    PartitionConfig(name="all", nodes=("n1", "n2", "n3", "n4", "c1", "c2"), max_time_s=86_400, priority_job_factor=7),
)
WEIGHTS = PrioritySettings(
    multifactor=True,
    max_age_s=3600,
    weight_age=10_000,
    weight_assoc=777,
    weight_fair_share=30_000,
    weight_job_size=5003,
    weight_partition=4001,
    weight_qos=2003,
    weight_tres=(("cpu", 1000.0), ("mem", 300.0), ("node", 70.0), ("gres/gpu", 3000.0)),
)
TWO_GPUS = (GresRequest("gpu", None, 2),)


@dataclass
class FakeQueue:
    """As much of a State as priorities need."""

    config: ClusterConfig
    accounts: AccountBook = field(default_factory=AccountBook)
    usage: Usages = field(default_factory=Usages)
    pending: dict[int, Job] = field(default_factory=dict)
    holding: dict[int, Job] = field(default_factory=dict)
    partition_priorities: dict[int, dict[str, int]] = field(default_factory=dict)
    priority_basis: Basis | None = None
    priority_columns: Columns | None = None

    @property
    def partitions(self) -> dict[str, PartitionConfig]:
        return {partition.name: partition for partition in self.config.partitions}


def book() -> AccountBook:
    """Accounts chem (root) and phys (daemon, nobody, games) as in the real cluster."""
    return AccountBook().changed(
        AccountsChanged(
            accounts=(Account(name="chem"), Account(name="phys")),
            users=tuple(User(name=name, default_account="phys") for name in ("daemon", "games", "nobody")),
            qos=(Qos(id=2, name="high", priority=900), Qos(id=3, name="mid", priority=333)),
            associations=(
                Association(id=10, account="chem", parent="root", shares=1),
                Association(id=11, account="chem", user="root", shares=1),
                Association(id=20, account="phys", parent="root", shares=3, priority=40),
                Association(id=21, account="phys", user="daemon", shares=3),
                Association(id=22, account="phys", user="games", shares=2),
                Association(id=23, account="phys", user="nobody", shares=7, priority=11),
            ),
        )
    )


def queue(*flags: str, **changes: object) -> FakeQueue:
    settings = Settings(
        priority=replace(WEIGHTS, **changes),  # type: ignore[arg-type]
        priority_flags=flags,
        default_memory_per_cpu_mib=512,
    )
    usage = Usages()
    for number in (1, 10, 11):  # only root of chem has run anything: its fair share is a fifth
        usage.associations[number] = Meter(at=NOW, used={BILLING: 3278.0})
    config = ClusterConfig(nodes=(*GPU_NODES, *CPU_NODES), partitions=PARTITIONS, settings=settings)
    return FakeQueue(config, book(), usage)


def job(age_s: float, *partitions: str, user: str = "root", account: str = "chem", **spec: object) -> Job:
    resources = ResourceRequest(**spec.pop("resources", {}))  # type: ignore[arg-type]
    asked = JobSpec(
        owner=Owner(uid=0, gid=0, user=user),
        account=account,
        partitions=partitions or ("gpu",),
        resources=resources,
        **spec,  # type: ignore[arg-type]
    )
    at = NOW - age_s
    return Job(1, asked, at, Pending(since=at, eligible_at=at))


def parts(where: FakeQueue, one: Job) -> Parts:
    where.pending[one.id] = one
    found = parts_of(where, one, NOW)
    assert len(found) == 1
    return found[0]


def test_a_job_on_one_node_as_slurm_weighs_it() -> None:
    found = parts(queue(), job(38, resources={"nodes_given": True}))
    assert found.age == pytest.approx(105.556, abs=0.001)
    assert (found.fair_share, found.assoc, found.qos) == (6000.0, 0.0, 0.0)
    assert found.job_size == pytest.approx(479.454, abs=0.001)  # one node of six, one core (two CPUs) of eighty CPUs
    assert found.partition_factor == pytest.approx(4001 * 3 / 7)
    assert dict(found.tres) == pytest.approx({"cpu": 15.625, "mem": 1.2, "node": 17.5})
    assert found.priority == 8334


@pytest.mark.parametrize(
    ("one", "priority"),
    [
        (job(38, resources={"ntasks": 4, "gres_per_node": TWO_GPUS}), 8822),
        (
            job(
                38,
                qos="high",
                resources={"nodes_min": 4, "ntasks": 64, "gres_per_node": (GresRequest("gpu", None, 4),)},
            ),
            17638,
        ),
        (job(38, "cpu", nice=100, resources={"ntasks": 3, "memory_per_node_mib": 3000}), 7338),
        (job(37, resources={"ntasks": 2, "cpus_per_task": 2, "gres_per_job": (GresRequest("gpu", None, 3),)}), 9006),
        (job(37, user="nobody", account="phys"), 32544),
        (job(37, user="daemon", account="phys", qos="high"), 35111),
        (job(35), 8325),
    ],
    ids=["gpus", "wide", "nice", "gpus-of-the-job", "association", "association-and-qos", "array"],
)
def test_priorities_are_slurms_to_the_last_digit(one: Job, priority: int) -> None:
    assert parts(queue(), one).priority == priority


def test_each_partition_has_its_own_priority_and_the_highest_is_the_jobs() -> None:
    where, one = queue(), job(38, "gpu", "cpu", "all", qos="mid")
    where.pending[one.id] = one
    reprioritise(where, NOW)
    own = where.partition_priorities[one.id]
    assert own["cpu"] == 7968
    assert list(own) == ["gpu", "cpu", "all"]
    assert one.priority == max(own.values()) == own["all"]


@pytest.mark.parametrize(
    ("flags", "changes", "one", "size"),
    [
        ((), {"favor_small": True}, job(0), 0.9041667),
        ((), {"favor_small": True}, job(0, resources={"nodes_min": 4, "ntasks": 64}), 0.2666667),
        (("SMALL_RELATIVE_TO_TIME",), {}, job(0), 0.0027778),
        (("SMALL_RELATIVE_TO_TIME",), {}, job(0, resources={"nodes_min": 4, "ntasks": 64}), 0.0133333),
        (("SMALL_RELATIVE_TO_TIME",), {}, job(0, "cpu"), 0.0),  # no time limit at all
        (("SMALL_RELATIVE_TO_TIME",), {"favor_small": True}, job(0), 0.9972222),
        (("SMALL_RELATIVE_TO_TIME",), {"favor_small": True}, job(0, "cpu"), 1.0),
    ],
)
def test_the_size_factor_and_its_variants(
    flags: tuple[str, ...], changes: dict[str, object], one: Job, size: float
) -> None:
    assert parts(queue(*flags, **changes), one).job_size / 5003 == pytest.approx(size, abs=1e-7)


def test_without_normalising_the_plain_values_count() -> None:
    found = parts(queue("NO_NORMAL_ALL"), job(0, user="daemon", account="phys", qos="high"))
    assert (found.assoc, found.partition_factor, found.qos) == (777 * 40, 4001 * 3, 2003 * 900)
    assert dict(found.tres) == {"cpu": 1000.0, "mem": 153_600.0, "node": 70.0}


@pytest.mark.parametrize("flag", ["NO_NORMAL_ASSOC", "NO_NORMAL_PART", "NO_NORMAL_QOS", "NO_NORMAL_TRES"])
def test_each_flag_leaves_one_factor_as_it_is(flag: str) -> None:
    one = job(0, user="daemon", account="phys", qos="high")
    plain, found = parts(queue(), one), parts(queue(flag), one)
    changed = {
        "NO_NORMAL_ASSOC": plain.assoc != found.assoc,
        "NO_NORMAL_PART": plain.partition_factor != found.partition_factor,
        "NO_NORMAL_QOS": plain.qos != found.qos,
        "NO_NORMAL_TRES": plain.tres != found.tres,
    }
    assert [name for name, differs in changed.items() if differs] == [flag]


def test_age_begins_when_the_job_could_run_and_ends_at_the_oldest() -> None:
    where, one = queue(), job(0)
    for eligible_at, weighed in ((None, 0.0), (NOW + 60, 0.0), (NOW - 1800, 5000.0), (NOW - 86_400, 10_000.0)):
        one.phase = Pending(since=NOW, eligible_at=eligible_at)
        assert parts(where, one).age == weighed


def test_accrue_always_counts_from_the_submission() -> None:
    one = job(1800)
    one.phase = Pending(since=NOW - 1800, eligible_at=None)
    assert parts(queue(), one).age == 0
    assert parts(queue("ACCRUE_ALWAYS"), one).age == 5000
    assert not is_ranked(queue(), one)
    assert is_ranked(queue("ACCRUE_ALWAYS"), one)


@pytest.mark.parametrize(("oldest", "weighed"), [(0, 10_000.0), (None, 0.0)])
def test_the_oldest_age_may_be_none_or_any(oldest: int | None, weighed: float) -> None:
    assert parts(queue(max_age_s=oldest), job(5)).age == weighed


def test_a_factor_without_weight_is_nothing() -> None:
    bare = queue(
        weight_age=0,
        weight_assoc=0,
        weight_fair_share=0,
        weight_job_size=0,
        weight_partition=0,
        weight_qos=0,
        weight_tres=(),
    )
    found = parts(bare, job(100, qos="high"))
    assert (found.age, found.assoc, found.fair_share, found.job_size, found.partition_factor, found.qos) == (0,) * 6
    assert (found.tres, found.priority) == ((), 1)


def test_nice_and_site_factor_move_it_within_what_there_is() -> None:
    where = queue()
    plain = parts(where, job(0)).priority
    assert parts(queue(), job(0, nice=100)).priority == plain - 100
    assert parts(queue(), job(0, site_factor=77)).priority == plain + 77
    assert parts(queue(), job(0, nice=2_000_000)).priority == 1
    assert parts(queue(), job(0, site_factor=2**33)).priority == HIGHEST


def test_what_an_operator_set_is_kept_and_has_no_parts() -> None:
    where, one = queue(), job(100, priority=5000)
    where.pending[one.id] = one
    reprioritise(where, NOW)
    assert one.priority == 5000
    found = parts(where, one)
    assert (found.set_by_operator, found.priority, found.age, found.tres) == (True, 5000, 0, ())


def test_incr_only_never_lowers_a_priority() -> None:
    where, one = queue("INCR_ONLY"), job(100)
    where.pending[one.id] = one
    one.priority = 1_000_000
    reprioritise(where, NOW)
    assert one.priority == 1_000_000
    one.priority = 1
    reprioritise(where, NOW)
    assert one.priority > 8000


def test_basic_priorities_are_left_alone() -> None:
    where, one = queue(multifactor=False), job(100)
    where.pending[one.id] = one
    one.priority = 42
    reprioritise(where, NOW)
    rank(where, one, NOW)
    assert one.priority == 42
    assert where.priority_basis is None


def test_a_changed_job_or_book_is_measured_anew() -> None:
    where, one = queue(), job(0)
    where.pending[one.id] = one
    reprioritise(where, NOW)
    before = one.priority
    one.spec = replace(one.spec, qos="high")
    rank(where, one, NOW)
    assert one.priority == before + 2003
    where.accounts = where.accounts.changed(AccountsChanged(qos=(Qos(id=2, name="high", priority=0),)))
    reprioritise(where, NOW)
    assert one.priority == before


def test_one_job_and_the_whole_queue_are_weighed_alike() -> None:
    where = queue()
    for number in range(1, 40):
        one = job(number * 7, nice=number, resources={"ntasks": 1 + number % 9, "nodes_min": 1 + number % 3})
        one.id = number
        where.pending[number] = one
    reprioritise(where, NOW)
    together = {number: one.priority for number, one in where.pending.items()}
    assert together == {number: priority_of(where, one, NOW) for number, one in where.pending.items()}
    assert len(set(together.values())) > 30
    assert where.priority_basis is not None
    assert np.isclose(where.priority_basis.fair_share[11], 0.2)


def test_jobs_that_come_go_and_change_are_weighed_as_if_all_were_new() -> None:
    where = queue()
    for number in range(1, 3_000):
        one = job(number % 600, "gpu", *(("cpu",) if number % 5 == 0 else ()), resources={"ntasks": 1 + number % 4})
        one.id = number
        where.pending[number] = one
        if number % 500 == 0:
            reprioritise(where, NOW)
            for gone in [job_id for job_id in where.pending if job_id % 3]:
                del where.pending[gone]
        if number % 70 == 0:
            one.spec = replace(one.spec, nice=number)
            one.phase = replace(one.phase, accrues=False)
    reprioritise(where, NOW + 60)
    kept = {number: one.priority for number, one in where.pending.items()}
    kept_apart = where.partition_priorities
    where.priority_columns = None
    reprioritise(where, NOW + 60)
    assert kept == {number: one.priority for number, one in where.pending.items()}
    assert kept_apart == where.partition_priorities
    assert kept_apart
