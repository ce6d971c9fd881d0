"""Limits of associations, QOS and partitions: who waits for which, with Slurm's word, and who does not."""

from typing import Any

import pytest

from bireme.core.explain.wording import sentence
from bireme.core.jobs.states import job_reasons
from bireme.core.limits.budgets import runs_out_at
from bireme.core.model.cluster import Settings
from bireme.core.model.policy import Policy
from bireme.core.model.refusals import Refusal, Why
from bireme.core.why.answers import Certainty
from bireme.core.why.waiting import explain_waiting
from bireme.testing.books import book_change
from bireme.testing.scenario import Scenario

LIMITS = ("associations", "limits")
SAFE = ("associations", "limits", "safe")
EVERYBODY: dict[str, Any] = {"alice": {}, "bob": {}}


def limited(
    cluster: str = "1x8",
    *,
    accounts: Any = None,
    users: Any = None,
    qos: Any = None,
    enforce: tuple[str, ...] = LIMITS,
    settings: Any = None,
    **options: Any,
) -> Scenario:
    """alice and bob in account lab; limits by the names of `Limits`."""
    values = {"accounting_enforce": enforce, "memory_is_consumable": False, **(settings or {})}
    world = Scenario(cluster, settings=Settings(**values), **options)
    world.record([book_change(world.state.accounts, accounts or {"lab": {}}, {**EVERYBODY, **(users or {})}, qos)])
    return world


def why(world: Scenario, label: str) -> list[str]:
    return [sentence(each) for each in job_reasons(world.state, world.job(label))]


# -- jobs ------------------------------------------------------------------------------------------------------------


def test_a_user_runs_as_many_jobs_as_the_association_allows():
    world = limited(users={"alice": {"max_jobs_per_user": 1}})
    for label in ("a", "b"):
        world.submit(label)
    world.submit("c", user="bob")
    world.expect(a="runs n1", b="waits AssocMaxJobsLimit", c="runs n1")
    assert why(world, "b") == ["Account lab for user alice lets 1 jobs run at once, and 1 do."]
    world.finish("a")
    world.expect(a="COMPLETED", b="runs n1")


def test_a_job_whose_qos_has_a_limit_of_its_own_counts_for_its_account():
    """The QOS's word goes first for that job; others of the account find one running."""
    world = limited(accounts={"lab": {"grp_jobs": 1}}, qos={"gold": {"grp_jobs": 2}})
    world.submit("gold", qos="gold")
    world.submit("plain")
    world.submit("second", qos="gold")
    world.expect(gold="runs n1", plain="waits AssocGrpJobsLimit", second="runs n1")
    world.finish("gold")
    world.expect(gold="COMPLETED")
    world.finish("second")
    world.expect(second="COMPLETED", plain="runs n1")


def test_an_accounts_limit_on_each_user_is_inherited():
    world = limited(accounts={"lab": {"max_jobs_per_user": 1}})
    world.submit("a")
    world.submit("b")
    world.submit("c", user="bob")
    world.expect(a="runs n1", b="waits AssocMaxJobsLimit", c="runs n1")


def test_group_limits_count_everybody_below_and_every_level_holds():
    world = limited(accounts={"uni": {"grp_jobs": 3}, "lab": {"parent": "uni", "grp_jobs": 2}},
                    users={"alice": {"account": "lab"}, "bob": {"account": "uni"}})  # fmt: skip
    for label in ("a", "b", "c"):
        world.submit(label)
    for label in ("d", "e"):
        world.submit(label, user="bob")
    world.expect(
        a="runs n1",
        b="runs n1",
        c="waits AssocGrpJobsLimit,AssocGrpJobsLimit",
        d="runs n1",
        e="waits AssocGrpJobsLimit",
    )
    world.finish("a")
    world.expect(a="COMPLETED", c="runs n1")
    world.finish("d")
    world.expect(d="COMPLETED", e="runs n1")


QOS_JOBS = [
    ({"grp_jobs": 1}, "QOSGrpJobsLimit", "QOSGrpJobsLimit"),
    ({"max_jobs_per_user": 1}, "QOSMaxJobsPerUserLimit", "runs n1"),
    ({"max_jobs_per_account": 1}, "MaxJobsPerAccount", "MaxJobsPerAccount"),
    ({"grp_tres": {"cpu": 2}}, "QOSGrpCpuLimit", "QOSGrpCpuLimit"),
    ({"grp_tres": {"node": 1}}, "QOSGrpNodeLimit", "QOSGrpNodeLimit"),
    ({"grp_tres": {"gres/gpu": 2}}, "QOSGrpGRES", "QOSGrpGRES"),
    ({"grp_tres": {"gres/gpu:h100": 2}}, "QOSGrpGRES", "QOSGrpGRES"),
    ({"grp_tres": {"billing": 2}}, "QOSGrpBilling", "QOSGrpBilling"),
    ({"max_tres_per_user": {"cpu": 2}}, "QOSMaxCpuPerUserLimit", "runs n1"),
    ({"max_tres_per_user": {"gres/gpu": 3}}, "QOSMaxGRESPerUser", "runs n1"),
    ({"max_tres_per_account": {"cpu": 2}}, "MaxCpuPerAccount", "MaxCpuPerAccount"),
    ({"grp_tres_run_mins": {"cpu": 30}}, "QOSGrpCPURunMinutesLimit", "QOSGrpCPURunMinutesLimit"),
    ({"grp_tres_run_mins": {"gres/gpu": 30}}, "QOSGrpGRESRunMinutes", "QOSGrpGRESRunMinutes"),
    ({"max_tres_run_mins_per_user": {"cpu": 30}}, "QOSGrpCPURunMinutesLimit", "runs n1"),
]


@pytest.mark.parametrize(("limits", "second", "other"), QOS_JOBS)
def test_what_jobs_of_a_qos_hold_together(limits: Any, second: str, other: str):
    world = limited("1x8:h100", qos={"normal": limits})
    for label, user in (("a", "alice"), ("b", "alice"), ("c", "bob")):
        world.submit(label, user=user, cpus=2, gpus=2, time_s=600)
    world.expect(a="runs n1", b=f"waits {second}", c=other if " " in other else f"waits {other}")
    world.finish("a")
    world.expect({"a": "COMPLETED", "b": "runs n1"})


JOB_ALONE = [
    ({"max_tres_per_job": {"cpu": 3}}, "QOSMaxCpuPerJobLimit", "AssocMaxCpuPerJobLimit"),
    ({"max_tres_per_job": {"gres/gpu": 1}}, "QOSMaxGRESPerJob", "AssocMaxGRESPerJob"),
    ({"max_tres_per_job": {"node": 1}}, "QOSMaxNodePerJobLimit", "AssocMaxNodePerJobLimit"),
    ({"max_tres_per_node": {"cpu": 1}}, "QOSMaxCpuPerNode", "AssocMaxCpuPerNode"),
    ({"max_tres_mins_per_job": {"cpu": 30}}, "QOSMaxCpuMinutesPerJobLimit", "AssocMaxCpuMinutesPerJobLimit"),
    ({"max_wall_s": 300}, "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit"),
    ({"min_tres_per_job": {"cpu": 5}}, "QOSMinCpuNotSatisfied", ""),
]


@pytest.mark.parametrize(("limits", "of_qos", "of_association"), JOB_ALONE)
def test_what_a_job_may_ask_for(limits: Any, of_qos: str, of_association: str):
    world = limited("2x8:h100", qos={"normal": limits})
    world.submit("big", nodes=2, tasks=2, cpus=2, gpus=2, time_s=600)
    world.expect(big=f"waits {of_qos}")
    if of_association:
        world = limited("2x8:h100", accounts={"lab": limits})
        world.submit("big", nodes=2, tasks=2, cpus=2, gpus=2, time_s=600)
        world.expect(big=f"waits {of_association}")


@pytest.mark.parametrize(("limits", "of_qos", "of_association"), JOB_ALONE)
def test_deny_on_limit_refuses_what_could_never_run(limits: Any, of_qos: str, of_association: str):
    world = limited("2x8:h100", qos={"normal": {**limits, "flags": "DenyOnLimit"}})
    if "max_tres_per_node" in limits:
        return  # not known before it has a place
    with pytest.raises(Refusal) as refusal:
        world.submit("big", nodes=2, tasks=2, cpus=2, gpus=2, time_s=600)
    assert refusal.value.why is Why.ACCOUNTING_POLICY
    assert refusal.value.remark == of_qos
    assert refusal.value.hint.startswith("QOS normal ")
    world.expect({})


def test_deny_on_limit_takes_group_limits_as_one_jobs_but_lets_jobs_wait_for_each_other():
    world = limited(qos={"normal": {"grp_tres": {"cpu": 4}, "flags": "DenyOnLimit"}})
    with world.refused(Why.ACCOUNTING_POLICY):
        world.submit("big", cpus=5)
    world.submit("a", cpus=4)
    world.submit("b", cpus=4)
    world.expect(a="runs n1", b="waits QOSGrpCpuLimit")


def test_nothing_is_limited_unless_limits_are_enforced():
    world = limited(qos={"normal": {"grp_jobs": 0}}, enforce=("associations",))
    world.submit("a")
    world.expect(a="runs n1")


def test_a_limit_does_not_hold_up_the_queue_behind_it():
    world = limited("1x8", users={"alice": {"grp_tres": {"cpu": 4}}})
    world.submit("a", cpus=4)
    world.submit("b", cpus=4)
    world.submit("c", user="bob", cpus=4)
    world.expect(a="runs n1", b="waits AssocGrpCpuLimit", c="runs n1")


def test_a_job_that_a_limit_blocks_has_no_slot():
    world = limited("1x8", users={"alice": {"max_jobs_per_user": 1}})
    world.submit("a", cpus=4, time_s=1000)
    world.submit("b", cpus=8, time_s=10)
    world.submit("c", user="bob", cpus=4, time_s=5000)
    world.expect(a="runs n1", b="waits AssocMaxJobsLimit", c="runs n1")


# -- precedence ------------------------------------------------------------------------------------------------------


def test_the_qos_takes_the_place_of_the_associations_limit_tres_by_tres():
    world = limited(
        "1x8:h100",
        accounts={"lab": {"grp_tres": {"cpu": 1, "gres/gpu": 1}}},
        qos={"normal": {"grp_tres": {"cpu": 4}}},
    )
    world.submit("a", cpus=4)
    world.submit("b", gpus=2, user="bob")
    world.expect(a="runs n1", b="waits QOSGrpCpuLimit,AssocGrpGRES")


def test_the_partitions_qos_comes_before_the_jobs_own():
    world = limited(qos={"normal": {"grp_jobs": 5}, "narrow": {"grp_jobs": 1}}, partitions={"main": {"qos": "narrow"}})
    world.submit("a")
    world.submit("b")
    world.expect(a="runs n1", b="waits QOSGrpJobsLimit")
    assert "QOS narrow" in why(world, "b")[0]


def test_over_part_qos_turns_that_round():
    world = limited(
        qos={"normal": {"grp_jobs": 5, "flags": "OverPartQOS"}, "narrow": {"grp_jobs": 1}},
        partitions={"main": {"qos": "narrow"}},
    )
    world.submit("a")
    world.submit("b")
    world.expect(a="runs n1", b="runs n1")


def test_limit_factor_widens_the_associations_limits():
    world = limited(accounts={"lab": {"grp_tres": {"cpu": 4}}}, qos={"normal": {"limit_factor": 2.0}})
    world.submit("a", cpus=4)
    world.submit("b", cpus=4)
    world.expect(a="runs n1", b="runs n1")


def test_a_partition_association_counts_by_itself():
    world = limited(
        "1x8", partitions={"main": {}, "debug": {}}, users={"alice": {"max_jobs_per_user": 1, "partition": "debug"}}
    )
    world.record([book_change(world.state.accounts, users={"alice": {"account": "lab"}})])
    world.submit("a", partition="debug")
    world.submit("b", partition="debug")
    world.submit("c", partition="main")
    world.expect(a="runs n1", b="waits AssocMaxJobsLimit", c="runs n1")


def test_a_job_goes_to_the_partition_where_no_limit_blocks_it():
    world = limited(qos={"normal": {}, "narrow": {"grp_jobs": 0}}, partitions={"main": {"qos": "narrow"}, "other": {}})
    world.submit("a", partition="main,other")
    world.expect(a="runs n1")
    assert world.job("a").allocation.partition == "other"


# -- whole cores and nodes -------------------------------------------------------------------------------------------


def test_what_counts_is_what_is_held_and_not_what_was_asked():
    world = limited("1x8", qos={"normal": {"grp_tres": {"cpu": 4}}})
    world.submit("a", exclusive=True)
    world.submit("b", user="bob", cpus=4)
    world.expect(a="waits QOSGrpCpuLimit", b="runs n1")


# -- budgets ---------------------------------------------------------------------------------------------------------


def test_a_gpu_budget_is_used_up_and_ends_who_uses_it():
    world = limited(
        "1x8:h100",
        accounts={"lab": {"grp_tres_mins": {"gres/gpu": 20}}},
        settings={"priority_decay_half_life_s": None},
    )
    world.submit("a", gpus=2, time_s=6000)
    world.submit("b", cpus=1, time_s=6000)
    world.wait(599)
    world.expect(a="runs n1", b="runs n1")
    world.wait(2)
    world.expect(a="TIMEOUT")
    world.submit("c", gpus=1, time_s=60)
    world.submit("d", cpus=1)
    world.expect(c="waits AssocGrpGRESMinutes", d="runs n1")


@pytest.mark.parametrize("half_life", [600, 3600, None])
def test_the_end_of_a_budget_is_known_ahead(half_life: int | None):
    world = limited(
        accounts={"lab": {"grp_tres_mins": {"cpu": 12}}}, settings={"priority_decay_half_life_s": half_life}
    )
    world.submit("a", time_s=60_000)
    world.wait(1)
    job = world.job("a")
    end = runs_out_at(world.state.ledger.rules, world.state.usage, job, job.phase)
    assert end is not None
    lab = world.state.accounts.find("lab").id
    assert world.state.usage.of_association(lab, "cpu", end[0]) == pytest.approx(12 * 60)


def test_a_safe_budget_starts_only_what_it_can_pay_to_the_end():
    world = limited(
        "1x8:h100", accounts={"lab": {"grp_tres_mins": {"gres/gpu": 43}}}, enforce=SAFE,
        settings={"priority_decay_half_life_s": None},
    )  # fmt: skip
    world.submit("a", gpus=2, time_s=1200)
    world.submit("b", gpus=1, time_s=240)
    world.expect(a="runs n1", b="waits AssocGrpGRESMinutes")
    assert why(world, "b") == [
        "Account lab has a budget of 43 gres/gpu minutes; 40.0 are used or promised, and it may use 4.0."
    ]
    world.wait(600)
    world.expect({})
    world.finish("a")
    world.expect(a="COMPLETED", b="runs n1")


def test_a_used_budget_comes_back_as_usage_decays():
    world = limited(
        "1x8:h100",
        qos={"normal": {"grp_tres_mins": {"gres/gpu": 10}}},
        enforce=SAFE,
        settings={"priority_decay_half_life_s": 3600},
    )
    world.submit("a", gpus=1, time_s=540)
    world.submit("b", gpus=1, time_s=540)
    world.wait(500)
    world.finish("a")
    world.expect(a="COMPLETED", b="waits QOSGrpGRESMinutes")
    world.wait(2 * 3600)
    world.expect(a="gone")
    world.wait(3600)
    world.expect(b="runs n1")


def test_usage_factor_counts_for_run_minutes():
    world = limited(qos={"normal": {"grp_tres_run_mins": {"cpu": 20}, "usage_factor": 2.0}})
    world.submit("a", time_s=600)
    world.submit("b", time_s=600)
    world.expect(a="runs n1", b="waits QOSGrpCPURunMinutesLimit")


def test_run_minutes_come_free_as_time_passes():
    world = limited(qos={"normal": {"grp_tres_run_mins": {"cpu": 15}}})
    world.submit("a", time_s=600)
    world.submit("b", time_s=600)
    world.expect(a="runs n1", b="waits QOSGrpCPURunMinutesLimit")
    world.wait(301)
    world.expect(b="runs n1")


def test_a_job_without_an_end_never_fits_run_minutes():
    world = limited(qos={"normal": {"grp_tres_run_mins": {"cpu": 1000}}})
    world.submit("a")
    world.submit("b", time_s=600)
    world.expect(a="waits QOSGrpCPURunMinutesLimit", b="runs n1")


def test_wall_time_of_a_qos_is_used_up():
    world = limited(qos={"normal": {"grp_wall_s": 600}}, settings={"priority_decay_half_life_s": None})
    world.submit("a", time_s=1200)
    world.wait(700)
    world.submit("b", time_s=60)
    world.expect(a="TIMEOUT", b="waits QOSGrpWallLimit")


# -- submission ------------------------------------------------------------------------------------------------------


SUBMIT = [
    ({"users": {"alice": {"max_submit_per_user": 2}}}, "AssocMaxSubmitJobLimit", True),
    ({"accounts": {"lab": {"grp_submit": 2}}}, "AssocGrpSubmitJobsLimit", False),
    ({"qos": {"normal": {"grp_submit": 2}}}, "QOSGrpSubmitJobsLimit", False),
    ({"qos": {"normal": {"max_submit_per_user": 2}}}, "QOSMaxSubmitJobPerUserLimit", True),
    ({"qos": {"normal": {"max_submit_per_account": 2}}}, "MaxSubmitJobsPerAccount", False),
]


@pytest.mark.parametrize(("limits", "word", "bob_may"), SUBMIT)
def test_too_many_jobs_are_refused_with_slurms_sentence(limits: Any, word: str, bob_may: bool):
    world = limited(**limits)
    world.submit("a")
    world.submit("b", begin_at=world.now + 100)
    with pytest.raises(Refusal) as refusal:
        world.submit("c")
    assert refusal.value.message.startswith("Job violates accounting/QOS policy (job submit limit, user's size")
    assert refusal.value.errno == 2050
    assert refusal.value.remark == word
    if bob_may:
        world.submit("d", user="bob")
    world.expect({"a": "runs n1", "b": "waits BeginTime", **({"d": "runs n1"} if bob_may else {})})
    world.finish("a")
    world.submit("c")
    world.expect(a="COMPLETED", c="runs n1")


def test_each_task_of_an_array_is_a_submission():
    world = limited(users={"alice": {"max_submit_per_user": 3}})
    with world.refused(Why.ACCOUNTING_POLICY):
        world.submit("many", array="0-3")
    world.submit("some", array="0-1", cpus=8)
    world.submit("one")
    with world.refused(Why.ACCOUNTING_POLICY):
        world.submit("more")
    world.expect({"some_0": "runs n1", "some_[1]": "waits Resources", "one": "waits Priority"})
    world.finish("some_0")
    world.submit("more")


def test_components_of_one_job_are_counted_together():
    world = limited(users={"alice": {"max_submit_per_user": 1}})
    with world.refused(Why.ACCOUNTING_POLICY):
        world.submit_het("het", {}, {})


def test_tasks_of_an_array_start_up_to_the_limit():
    world = limited(users={"alice": {"max_jobs_per_user": 2}})
    world.submit("many", array="0-3")
    world.expect({"many_0": "runs n1", "many_1": "runs n1", "many_[2-3]": "waits AssocMaxJobsLimit"})
    world.finish("many_0")
    world.expect({"many_0": "COMPLETED", "many_2": "runs n1", "many_[3]": "waits AssocMaxJobsLimit"})


def test_a_gang_starts_whole_within_its_limits_or_waits():
    world = limited(qos={"normal": {"grp_tres": {"cpu": 4}}})
    world.submit_het("het", {"cpus": 2}, {"cpus": 3})
    world.submit("small", cpus=4)
    world.expect({"het": "waits QOSGrpCpuLimit", "het+1": "waits QOSGrpCpuLimit", "small": "runs n1"})


def test_no_time_limit_asked_is_the_longest_allowed():
    world = limited(qos={"normal": {"max_wall_s": 300}})
    world.submit("a")
    world.expect(a="runs n1")
    assert world.job("a").spec.time_limit_s == 300


def test_a_partitions_default_time_counts_as_asked_for():
    world = limited(qos={"normal": {"max_wall_s": 300}}, partitions={"main": {"default_time_s": 600}})
    world.submit("a")
    world.expect(a="waits QOSMaxWallDurationPerJobLimit")


# -- changes while jobs wait and run ---------------------------------------------------------------------------------


def test_a_limit_that_is_lifted_lets_jobs_go():
    world = limited(qos={"normal": {"grp_jobs": 1}})
    world.submit("a")
    world.submit("b")
    world.expect(a="runs n1", b="waits QOSGrpJobsLimit")
    world.record([book_change(world.state.accounts, qos={"normal": {"grp_jobs": 2}})])
    world.expect(b="runs n1")


def test_a_limit_set_later_counts_what_runs_already():
    world = limited()
    world.submit("a")
    world.expect(a="runs n1")
    world.record([book_change(world.state.accounts, accounts={"lab": {"grp_jobs": 1}})])
    world.submit("b")
    world.expect(b="waits AssocGrpJobsLimit")


def test_a_requeued_and_a_changed_job_count_where_they_are_now():
    world = limited(qos={"normal": {"grp_jobs": 1}, "gold": {}}, accounts={"lab": {"qos": ("normal", "gold")}})
    world.submit("a")
    world.submit("b")
    world.expect(a="runs n1", b="waits QOSGrpJobsLimit")
    world.update("b", qos="gold")
    world.expect(b="runs n1")
    world.requeue("a")
    world.submit("c")
    world.settle()
    assert world.state.ledger.tally(("qos", "normal")).jobs == 1


# -- partitions and QOS flags ----------------------------------------------------------------------------------------


def test_cpus_of_each_user_in_a_partition():
    world = Scenario("1x8", partitions={"main": {"max_cpus_per_user": 4}, "other": {}})
    world.submit("a", cpus=3)
    world.submit("b", cpus=2)
    world.submit("c", user="bob", cpus=2)
    world.submit("d", cpus=2, partition="other")
    world.expect(a="runs n1", b="waits QOSMaxCpuPerUserLimit", c="runs n1", d="runs n1")
    assert why(world, "b") == ["Partition main allows 4 cpu at once; 3 are held, and it needs 2."]


def test_a_qos_may_go_beyond_the_partitions_nodes_and_time():
    flags = "PartitionMaxNodes,PartitionTimeLimit"
    world = limited("2x8", qos={"normal": {"flags": flags}}, partitions={"main": {"max_nodes": 1, "max_time_s": 60}})
    world.submit("a", nodes=2, time_s=120)
    world.expect(a="runs n[1-2]")


def test_no_reserve_holds_nothing_back_for_the_job():
    world = limited(
        qos={"normal": {}, "standby": {"flags": "NoReserve"}}, accounts={"lab": {"qos": ("normal", "standby")}}
    )
    world.submit("a", cpus=4, time_s=1000)
    world.submit("wide", cpus=8, time_s=10, qos="standby")
    world.submit("long", cpus=4, time_s=5000, user="bob")
    world.expect(a="runs n1", wide="waits Resources", long="runs n1")


def test_a_qos_for_reservations_only():
    world = limited(qos={"normal": {"flags": "RequiresReservation"}})
    with world.refused(Why.INVALID_QOS):
        world.submit("a")


def test_who_used_too_much_waits_below_the_usage_threshold():
    flags = {"flags": "EnforceUsageThreshold", "usage_threshold": 0.6}
    world = limited("1x2", qos={"normal": flags}, settings={"priority_decay_half_life_s": 3600})
    world.submit("a", time_s=1000)
    world.wait(500)
    world.submit("b", time_s=1000)
    world.submit("c", time_s=1000, user="bob")
    world.expect(a="runs n1", b="waits QOSUsageThreshold", c="runs n1")


# -- licences --------------------------------------------------------------------------------------------------------


def test_more_licences_than_there_are_may_be_waited_for():
    """allow_zero_lic: somebody may buy them."""
    policy = Policy(takes_any_licences=True)
    world = Scenario("1x8", settings=Settings(licenses="matlab:3", policy=policy, memory_is_consumable=False))
    world.submit("a", licenses="matlab:4")
    world.expect(a="waits Licenses")
    with world.refused(Why.INVALID_LICENSES):
        world.submit("b", licenses="matlab:many")


def test_licences_are_counted():
    world = Scenario("1x8", settings=Settings(licenses="matlab:3,ansys", memory_is_consumable=False))
    world.submit("a", licenses="matlab:2")
    world.submit("b", licenses="matlab:2,ansys")
    world.submit("c", licenses="ansys", user="bob")
    world.expect(a="runs n1", b="waits Licenses,Licenses", c="runs n1")
    world.finish("c")
    world.expect(b="waits Licenses", c="COMPLETED")
    assert why(world, "b") == ["The cluster allows 3 license/matlab at once; 2 are held, and it needs 2."]
    world.finish("a")
    world.expect(a="COMPLETED", b="runs n1")


@pytest.mark.parametrize("asked", ["fluent", "matlab:4", "matlab:x", "a|b"])
def test_licences_that_are_not_there_are_refused(asked: str):
    world = Scenario("1x8", settings=Settings(licenses="matlab:3", memory_is_consumable=False))
    with world.refused(Why.INVALID_LICENSES):
        world.submit("a", licenses=asked)
    world.submit("b", licenses="matlab:3")
    world.expect(b="runs n1")


def test_a_waiting_job_may_change_its_licences():
    world = Scenario("1x8", settings=Settings(licenses="matlab:3,ansys", memory_is_consumable=False))
    world.submit("a", licenses="matlab:3")
    world.submit("b", licenses="matlab:1")
    world.expect(a="runs n1", b="waits Licenses")
    with world.refused(Why.INVALID_LICENSES):
        world.update("b", licenses="fluent")
    world.update("b", licenses="ansys")
    world.expect(b="runs n1")


def test_licences_are_a_tres_for_limits_too():
    world = limited(settings={"licenses": "matlab:4"}, qos={"normal": {"max_tres_per_user": {"license/matlab": 1}}})
    world.submit("a", licenses="matlab")
    world.submit("b", licenses="matlab")
    world.submit("c", licenses="matlab", user="bob")
    world.expect(a="runs n1", b="waits QOSMaxLicensePerUser", c="runs n1")


# -- partitions' own limits ------------------------------------------------------------------------------------------

BEYOND = [
    ({"max_nodes": 1}, {"nodes": 2}, "PartitionNodeLimit", Why.INVALID_NODE_COUNT),
    ({"min_nodes": 2}, {"nodes": 1}, "PartitionNodeLimit", Why.INVALID_NODE_COUNT),
    ({"max_time_s": 60}, {"time_s": 61}, "PartitionTimeLimit", Why.INVALID_TIME_LIMIT),
    ({"max_memory_per_node_mib": 500}, {"mem": 501}, "MaxMemPerLimit", Why.INVALID_TASK_MEMORY),
    ({"max_memory_per_node_mib": 500}, {"mem_per_cpu": 300, "cpus": 2}, "MaxMemPerLimit", Why.INVALID_TASK_MEMORY),
]


@pytest.mark.parametrize(("limits", "asked", "word", "refusal"), BEYOND)
def test_a_job_beyond_its_partitions_limits_waits_or_is_refused(limits: Any, asked: Any, word: str, refusal: Why):
    partitions = {"main": limits, "free": {}}
    world = Scenario("2x8", partitions=partitions, memory_mib=1000)
    world.submit("a", **asked)
    world.submit("b", mem=100, nodes=limits.get("min_nodes", 1))
    world.expect(a=f"waits {word}", b="runs n[1-2]" if "min_nodes" in limits else "runs n1")
    assert "?" not in why(world, "a")[0]
    for enforce in ("ANY", "ALL"):
        world = Scenario("2x8", partitions=partitions, memory_mib=1000, settings=Settings(enforce_part_limits=enforce))
        with world.refused(refusal):
            world.submit("a", **asked)
        if enforce == "ANY":
            world.submit("c", partition="main,free", **asked)
        else:
            with world.refused(refusal):
                world.submit("c", partition="main,free", **asked)


def test_more_memory_than_a_cpu_may_have_takes_more_cpus():
    world = Scenario("1x8", partitions={"main": {"max_memory_per_cpu_mib": 600}}, memory_mib=8000)
    world.submit("node", mem=2000)
    world.submit("cpu", mem_per_cpu=1200)
    world.expect(node="runs n1", cpu="runs n1")
    assert (world.job("node").allocation.cpus, world.job("cpu").allocation.cpus) == (4, 2)
    assert world.job("cpu").allocation.tres()["mem"] == 1200


@pytest.mark.parametrize("threads", [1, 2])
def test_cpus_of_a_node_that_a_partition_may_hold(threads: int):
    partitions = {"part": {"max_cpus_per_node": 4}, "all": {}}
    world = Scenario("2x8", partitions=partitions, threads_per_core=threads)
    with world.refused(Why.NODE_CONFIG_UNAVAILABLE):
        world.submit("never", cpus=5, partition="part")
    for label in ("a", "b", "c"):
        world.submit(label, cpus=3, time_s=600)
    world.submit("d", cpus=4, partition="all")
    world.expect(a="runs n1", b="runs n2", c="waits Resources", d="runs n1")
    world.finish("a")
    world.expect(a="COMPLETED", c="runs n1")


def test_a_gang_that_is_taken_back_gives_back_its_part_of_a_cap():
    world = Scenario("1x8", partitions={"part": {"max_cpus_per_node": 4}})
    world.submit_het("het", {"cpus": 3}, {"cpus": 3})
    world.submit("a", cpus=4)
    world.expect({"het": "waits Resources", "het+1": "waits Resources", "a": "runs n1"})


def test_why_tells_a_limit_that_others_free_from_one_that_they_do_not():
    world = limited(qos={"normal": {"max_wall_s": 600, "max_jobs_per_user": 1}})
    world.submit("a", time_s=60)
    world.submit("b", time_s=60)
    world.submit("c", time_s=601, user="bob")
    world.settle()
    certainty = {label: explain_waiting(world.state, world.job(label), world.now)[0].expected for label in "bc"}
    assert (certainty["b"].certainty, certainty["c"].certainty) == (Certainty.LIMITED, Certainty.BLOCKED)


# -- scontrol update ---------------------------------------------------------------------------------------------------


def test_a_job_may_not_move_to_a_qos_that_denies_it() -> None:
    """As with Slurm: looked at when the QOS changes, not when the job does, and not for operators."""
    strict = {"strict": {"grp_tres": {"cpu": 2}, "flags": "DenyOnLimit"}}
    world = limited(qos=strict, users={"alice": {"qos": ("normal", "strict")}})
    world.submit("large", cpus=4, hold=True)
    with world.refused(Why.ACCOUNTING_POLICY):
        world.update("large", qos="strict")
    world.update("large", qos="strict", user="root")
    world.update("large", qos="strict", comment="still")
    world.submit("small", cpus=1, hold=True, qos="strict")
    world.update("small", cpus_per_task=4)


def test_only_an_operator_takes_a_waiting_job_beyond_the_partitions_time() -> None:
    world = limited("1x8", partitions={"main": {"max_time_s": 7200}, "short": {"max_time_s": 600}})
    world.submit("job", hold=True, time_s=300)
    world.update("job", time_limit_s=7200)
    with world.refused(Why.ACCESS_DENIED):
        world.update("job", time_limit_s=7260)
    with world.refused(Why.ACCESS_DENIED):
        world.update("job", time_limit_s=None)
    with world.refused(Why.ACCESS_DENIED):
        world.update("job", time_limit_s=1200, partitions=("short",))
    world.update("job", time_limit_s=7260, user="root")
