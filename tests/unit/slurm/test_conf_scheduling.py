"""SchedulerParameters as a policy."""

from __future__ import annotations

import pytest

from bireme.core.model.policy import Policy
from bireme.slurm.conf.scheduling import scheduling_policy
from bireme.slurm.errors import SlurmSyntaxError


def read(parameters: str, **more: str) -> Policy:
    return scheduling_policy({"SchedulerParameters": parameters, **more})


def test_each_parameter_has_its_field() -> None:
    assert read(
        "bf_max_job_test=50, bf_max_job_user=6,bf_max_job_part=7,bf_max_job_assoc=8,"
        "bf_max_job_user_part=9,bf_max_job_start=10,bf_interval=11,bf_resolution=12,bf_window=13,bf_min_age_reserve=14,"
        "bf_min_prio_reserve=15,bf_job_part_count_reserve=16,bf_one_resv_per_job,assoc_limit_stop,"
        "allow_zero_lic,max_array_tasks=17,max_switch_wait=18,unknown,other=3"
    ) == Policy(
        bookings_max=50,
        bookings_per_user=6,
        bookings_per_partition=7,
        bookings_per_association=8,
        bookings_per_user_in_partition=9,
        starts_max=10,
        interval_s=11.0,
        resolution_s=12.0,
        window_s=13 * 60.0,
        reserves_after_s=14.0,
        reserves_from_priority=15,
        reserves_in_partition=16,
        one_slot_per_job=True,
        takes_any_licences=True,
        array_tasks_max=17,
        switches_wait_most_s=18,
        stops_at_association_limits=True,
    )


def test_zero_is_no_limit() -> None:
    none = "bf_max_job_user=0,bf_max_job_part=0,bf_max_job_assoc=0,bf_max_job_user_part=0,bf_max_job_start=0"
    assert read(f"{none},bf_job_part_count_reserve=0,sched_max_job_start=0") == Policy()


def test_an_interval_of_minus_one_turns_backfill_off() -> None:
    assert not read("bf_interval=-1").backfill


def test_whose_jobs_make_way_first() -> None:
    preempts = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"}
    assert not read("", **preempts).preemption.lowest_first
    assert read("preempt_strict_order", **preempts).preemption.lowest_first
    assert read("preempt_youngest_first", **preempts).preemption.youngest_first
    assert read("", PreemptParameters="strict_order", **preempts).preemption.lowest_first
    assert read("", PreemptParameters="youngest_first", **preempts).preemption.youngest_first


@pytest.mark.parametrize("wrong", ["bf_max_job_test=many", "bf_min_age_reserve=-5", "bf_max_job_assoc="])
def test_what_is_no_number_is_refused_by_its_name(wrong: str) -> None:
    with pytest.raises(SlurmSyntaxError, match=f"SchedulerParameters={wrong}"):
        read(wrong)
