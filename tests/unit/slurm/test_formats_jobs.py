"""Jobs as squeue, scontrol and sacct print them; expected lines were printed by Slurm 22.05 for the same jobs."""

from __future__ import annotations

from typing import Any

import pytest

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats import sacct_fields, squeue_fields
from bireme.slurm.formats.accounting import choose_columns, parsable_lines
from bireme.slurm.formats.fields import parse_sort, plan_percent, sort_records
from bireme.slurm.formats.identity import JobSelector, Tasks, job_label, parse_selector, parse_selectors, waiting_tasks
from bireme.slurm.formats.job_values import base_state
from bireme.slurm.formats.layout import parse_percent
from bireme.slurm.formats.show.job import block_text, id_ranges, job_block, step_block
from bireme.slurm.formats.squeue_fields import JOB_FIELDS
from bireme.slurm.formats.states import LIVE_STATES, compact_state, parse_job_states
from bireme.slurm.formats.values import Context, cpu_duration, size, tres_text

BASE = 1794719894


def stamp(at: float) -> str:
    return f"2026-11-15T{(int(at) - BASE) // 3600 + 5:02}:{(int(at) - BASE) // 60 % 60 + 18:02}:14"


CONTEXT = Context(now=BASE + 27, stamp=stamp)

RUNNING: dict[str, Any] = {
    "job_id": 31, "name": "hr_run", "user_id": 0, "user_name": "root", "group_id": 0, "group_name": "root",
    "partition": "gpu", "state": "RUNNING", "reason": "None", "priority": 4294901731, "submit_time": BASE,
    "eligible_time": BASE, "accrue_time": BASE, "start_time": BASE, "end_time": BASE + 7200, "time_limit_s": 7200,
    "elapsed_s": 27,
    "last_sched_time": BASE, "node_list": "n[1-2]", "node_count": 2, "batch_host": "n1", "num_tasks": 4,
    "num_cpus": 4, "cpus_per_task": 1, "ntasks_per_node": 2, "memory_mib": 4096, "memory_per": "node",
    "tres_per_node": "gpu:a100:2", "tres_allocated": {"cpu": 4, "mem": 8192, "node": 2, "billing": 4},
    "requeue": True, "work_dir": "/w", "command": "/w/sl.sh", "comment": "hello world", "std_in": "/dev/null",
    "std_out": "/w/slurm-31.out", "std_err": "/w/slurm-31.out", "oversubscribe": "OK", "kind": "batch",
    "submit_host": "login",
    "shares": [
        {"node": node, "cpus": 2, "memory_mib": 4096, "cpu_ids": [8, 9],
         "gres": [{"name": "gpu", "type": "a100", "count": 2, "indices": [0, 1]}]}
        for node in ("n1", "n2")
    ],
}  # fmt: skip
WAITING_ARRAY: dict[str, Any] = {
    "job_id": 32, "array_job_id": 32, "array_tasks": "2-31%2", "array_throttle": 2, "name": "hr_arr", "user_id": 0,
    "user_name": "root", "partition": "cpu", "state": "PENDING", "reason": "JobArrayTaskLimit", "nodes_min": 1,
    "priority": 4294901730, "time_limit_s": None,
}  # fmt: skip
FAILED: dict[str, Any] = {
    "job_id": 37, "name": "hr_fail", "partition": "gpu", "state": "FAILED", "reason": "NonZeroExitCode",
    "user_name": "root", "node_list": "n1", "node_count": 1, "elapsed_s": 0, "exit_code": 3,
}  # fmt: skip


def lines(form: str, *jobs: dict[str, Any]) -> list[str]:
    return plan_percent(parse_percent(form), JOB_FIELDS, "").lines(list(jobs), CONTEXT)


def test_default_format() -> None:
    assert lines(squeue_fields.DEFAULT_FORMAT, WAITING_ARRAY, RUNNING, FAILED) == [
        "       32_[2-31%2]       cpu   hr_arr     root PD       0:00      1 (JobArrayTaskLimit)",
        "                31       gpu   hr_run     root  R       0:27      2 n[1-2]",
        "                37       gpu  hr_fail     root  F       0:00      1 (NonZeroExitCode)",
    ]


def test_long_and_start_formats() -> None:
    assert lines(squeue_fields.LONG_FORMAT, RUNNING) == [
        "                31       gpu   hr_run     root  RUNNING       0:27   2:00:00      2 n[1-2]"
    ]
    begins = {**WAITING_ARRAY, "expected_start": BASE + 3600}
    assert lines(squeue_fields.START_FORMAT, begins) == [
        "       32_[2-31%2]       cpu   hr_arr     root PD 2026-11-15T06:18:14      1 (null)               "
        "(JobArrayTaskLimit)"
    ]


@pytest.mark.parametrize(
    ("letter", "text"),
    [
        ("a", "(null)"), ("b", "gres:gpu:a100:2"), ("B", "n1"), ("c", "2"), ("C", "4"), ("d", "0"), ("D", "2"),
        ("E", "(null)"), ("F", "31"), ("h", "OK"), ("H", "*"), ("k", "hello world"), ("K", "N/A"), ("L", "1:59:33"),
        ("m", "4G"), ("n", ""), ("o", "/w/sl.sh"), ("p", "0.99998473469168"), ("Q", "4294901731"), ("r", "None"),
        ("s", ""), ("v", "(null)"), ("x", ""), ("X", "N/A"), ("Y", "(null)"), ("z", "*:*:*"), ("Z", "/w"),
        ("e", "2026-11-15T07:18:14"), ("S", "2026-11-15T05:18:14"),
    ],
)  # fmt: skip
def test_letters_of_a_running_job(letter: str, text: str) -> None:
    assert lines(f"%{letter}", RUNNING) == [text]


def test_a_waiting_job_has_no_host_nor_end_and_a_reason() -> None:
    assert lines("%B|%e|%S|%R|%L|%K|%N", WAITING_ARRAY) == ["n/a|N/A|N/A|(JobArrayTaskLimit)|UNLIMITED|2-31%2|"]


def test_a_job_over_its_limit_shows_invalid_time_left() -> None:
    assert lines("%L", {**RUNNING, "elapsed_s": 8000}) == ["INVALID"]


@pytest.mark.parametrize(
    ("state", "outcome", "accounted"),
    [("CONFIGURING", "CONFIGURING", "RUNNING"), ("COMPLETING", "FAILED", "FAILED"), ("PENDING", "PENDING", "PENDING")],
)
def test_the_accounting_knows_no_state_that_passes_by_itself(state: str, outcome: str, accounted: str) -> None:
    """Clients take every word that sacct says beside the usual ones for an end: submitit did so with CONFIGURING."""
    assert base_state({**RUNNING, "state": state, "base_state": outcome}) == accounted


def test_completing_jobs_show_their_nodes() -> None:
    assert lines("%t %R", {**RUNNING, "state": "COMPLETING", "base_state": "COMPLETED"}) == ["CG n[1-2]"]


def test_sort_is_by_partition_then_state_then_priority_descending() -> None:
    other = {**RUNNING, "job_id": 40, "priority": 4294901799}
    jobs = [RUNNING, WAITING_ARRAY, other, {**RUNNING, "job_id": 41, "state": "PENDING"}]
    sort_records(jobs, parse_sort(squeue_fields.DEFAULT_SORT), JOB_FIELDS, CONTEXT)
    assert [job["job_id"] for job in jobs] == [32, 41, 40, 31]
    sort_records(jobs, parse_sort("-i"), JOB_FIELDS, CONTEXT)
    assert [job["job_id"] for job in jobs] == [41, 40, 32, 31]


def test_labels() -> None:
    assert job_label({"job_id": 5}) == "5"
    assert job_label({"job_id": 43, "array_job_id": 42, "array_task_id": 0}) == "42_0"
    assert job_label({"job_id": 132, "het_job_id": 131, "het_offset": 1}) == "131+1"
    assert job_label(WAITING_ARRAY) == "32_[2-31%2]"


def test_long_task_lists_are_cut_like_slurms() -> None:
    tasks = "12-33,36,40-42,44,46,48,50-52,54,56,58,60-62,64,66,68,70-72,74,76,78,80-82,84,86,91,96,101,106"
    job = {"array_tasks": tasks}
    assert waiting_tasks(job) == "12-33,36,40-42,44,46,48,50-52,54,56,58,60-62,64,66,68,70-72,..."
    assert waiting_tasks(job, 30) == "12-33,36,40-42,44,46,48,50..."
    assert waiting_tasks(job, 0) == tasks


def test_selectors_select_what_they_name() -> None:
    assert parse_selectors("42,42_3,42_[1-2,7],131+1,42.batch") == [
        JobSelector(42),
        JobSelector(42, Tasks((3,))),
        JobSelector(42, Tasks((1, 2, 7))),
        JobSelector(131, het_offset=1),
        JobSelector(42, step="batch"),
    ]
    assert parse_selector("32").matches(WAITING_ARRAY)
    assert parse_selector("32_7").matches(WAITING_ARRAY)
    assert not parse_selector("32_1").matches(WAITING_ARRAY)
    assert not parse_selector("31_5").matches(RUNNING)
    with pytest.raises(SlurmSyntaxError, match="Invalid job id: abc"):
        parse_selector("abc")


def test_states_by_long_and_short_name() -> None:
    assert parse_job_states("pd,Running") == {"PENDING", "RUNNING"}
    assert parse_job_states("all") is None
    assert compact_state("OUT_OF_MEMORY") == "OOM"
    assert "COMPLETED" not in LIVE_STATES
    with pytest.raises(SlurmSyntaxError, match="Invalid job state specified: foo"):
        parse_job_states("R,foo")


@pytest.mark.parametrize("key", ["comment", "admin_comment", "name", "command", "work_dir", "licenses", "dependency"])
def test_a_value_stays_on_its_line(key: str) -> None:
    plain, evil = ({**RUNNING, key: f"a{between}JobState=COMPLETED"} for between in (" ", "\n"))
    shown = block_text(job_block(evil, CONTEXT, details=True), oneliner=False)
    assert shown.count("\n") == block_text(job_block(plain, CONTEXT, details=True), oneliner=False).count("\n")
    assert r"a\nJobState=COMPLETED" in shown


def test_show_job_is_slurms_block() -> None:
    text = block_text(job_block(RUNNING, CONTEXT, details=True), oneliner=False)
    assert (
        text
        == """\
JobId=31 JobName=hr_run
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901731 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime=00:00:27 TimeLimit=02:00:00 TimeMin=N/A
   SubmitTime=2026-11-15T05:18:14 EligibleTime=2026-11-15T05:18:14
   AccrueTime=2026-11-15T05:18:14
   StartTime=2026-11-15T05:18:14 EndTime=2026-11-15T07:18:14 Deadline=N/A
   SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-15T05:18:14 Scheduler=Main
   Partition=gpu AllocNode:Sid=login:0
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-2]
   BatchHost=n1
   NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=4,mem=8G,node=2,billing=4
   Socks/Node=* NtasksPerN:B:S:C=2:0:*:* CoreSpec=*
   JOB_GRES=gpu:a100:4
     Nodes=n[1-2] CPU_IDs=8-9 Mem=4096 GRES=gpu:a100:2(IDX:0-1)
   MinCPUsNode=2 MinMemoryNode=4G MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)
   Command=/w/sl.sh
   WorkDir=/w
   Comment=hello world\x20
   StdErr=/w/slurm-31.out
   StdIn=/dev/null
   StdOut=/w/slurm-31.out
   Power=
   TresPerNode=gres:gpu:a100:2
  \x20

"""
    )
    assert block_text(job_block(RUNNING, CONTEXT), oneliner=True).endswith("TresPerNode=gres:gpu:a100:2 \n")


def test_show_waiting_array() -> None:
    block = job_block(WAITING_ARRAY, CONTEXT)
    assert block[0] == "JobId=32 ArrayJobId=32 ArrayTaskId=2-31%2 ArrayTaskThrottle=2 JobName=hr_arr"
    assert "StartTime=Unknown EndTime=Unknown Deadline=N/A" in block
    assert "NodeList=" in block
    assert not any(line.startswith("BatchHost") for line in block)


def test_show_step() -> None:
    step = {
        "step_id": 0, "user_id": 0, "start_time": BASE, "state": "RUNNING", "partition": "gpu", "node_list": "n[1-2]",
        "node_count": 2, "num_cpus": 4, "num_tasks": 2, "name": "sleep", "layout": "Cyclic",
        "tres_allocated": {"cpu": 4, "mem": 8192, "node": 2, "gres/gpu": 4, "gres/gpu:a100": 4},
        "cpus_per_task": 3, "tres_per_node": "gpu:2", "tres_per_task": "gpu:1",
    }  # fmt: skip
    assert (
        block_text(step_block(step, CONTEXT, "31.0"), oneliner=False)
        == """\
StepId=31.0 UserId=0 StartTime=2026-11-15T05:18:14 TimeLimit=UNLIMITED
   State=RUNNING Partition=gpu NodeList=n[1-2]
   Nodes=2 CPUs=4 Tasks=2 Name=sleep Network=(null)
   TRES=cpu=4,gres/gpu:a100=4,gres/gpu=4,mem=8G,node=2
   ResvPorts=(null)
   CPUFreqReq=Default Dist=Cyclic
   SrunHost:Pid=(null):0
   TresPerStep=cpu:6
   TresPerNode=gres:gpu:2
   TresPerTask=cpu:3,gres:gpu:1

"""
    )


FINISHED: dict[str, Any] = {
    "job_id": 43, "array_job_id": 42, "array_task_id": 3, "name": "train", "partition": "gpu", "account": "ml",
    "state": "COMPLETED", "exit_code": 0, "user_name": "ada", "user_id": 1000, "submit_time": BASE,
    "eligible_time": BASE, "accrue_time": BASE, "start_time": BASE + 60, "end_time": BASE + 3660, "elapsed_s": 3600,
    "time_limit_s": 7200, "node_list": "n1", "node_count": 1, "nodes_min": 1,
    "tres_requested": {"cpu": 8, "mem": 16384, "node": 1, "billing": 8, "gres/gpu": 2, "gres/gpu:h100": 2},
    "tres_allocated": {"cpu": 8, "mem": 16384, "node": 1, "billing": 8, "gres/gpu": 2, "gres/gpu:h100": 2},
    "steps": [
        {"step_id": 0, "name": "python", "state": "FAILED", "exit_code": 1, "elapsed_s": 10, "num_cpus": 8,
         "num_tasks": 2, "node_list": "n1", "node_count": 1, "start_time": BASE + 61, "end_time": BASE + 71,
         "usage": {"user_cpu_s": 3.5, "system_cpu_s": 0.5, "max_rss_kib": 1892, "max_rss_node": "n1",
                   "max_rss_task": 1, "total_rss_kib": 3000, "tasks": 2}},
        {"step_id": "batch", "name": "batch", "state": "COMPLETED", "elapsed_s": 3600, "num_cpus": 8,
         "node_list": "n1", "node_count": 1, "start_time": BASE + 60, "end_time": BASE + 3660,
         "usage": {"user_cpu_s": 1.0, "system_cpu_s": 0.25, "max_rss_kib": 2048, "tasks": 1}},
    ],
}  # fmt: skip


def sacct(form: str, job: dict[str, Any], *, steps: bool = True) -> list[str]:
    columns = choose_columns(form, sacct_fields.SACCT_FIELDS, sacct_fields.SACCT_ALIASES)
    return parsable_lines(columns, sacct_fields.rows_of(job, steps=steps), CONTEXT, header=False)


def test_sacct_lists_the_job_then_batch_then_steps() -> None:
    assert sacct("JobID,JobIDRaw,JobName,Partition,Account,AllocCPUS,State,ExitCode,User", FINISHED) == [
        "42_3|43|train|gpu|ml|8|COMPLETED|0:0|ada",
        "42_3.batch|43.batch|batch||ml|8|COMPLETED|0:0|",
        "42_3.0|43.0|python||ml|8|FAILED|1:0|",
    ]
    assert len(sacct("JobID", FINISHED, steps=False)) == 1


def test_sacct_usage_belongs_to_steps_and_cpu_time_adds_up() -> None:
    assert sacct("MaxRSS,MaxRSSNode,AveRSS,NTasks,TotalCPU,UserCPU,CPUTime,AveCPU", FINISHED) == [
        "||||00:05.250|00:04.500|08:00:00|",
        "2M||0|1|00:01.250|00:01.000|08:00:00|00:00:01",
        "1892K|n1|1500K|2|00:04.000|00:03.500|00:01:20|00:00:02",
    ]


def test_sacct_resources_in_new_and_old_words() -> None:
    assert sacct("ReqMem,AllocTRES,AllocGRES,ReqGRES,NNodes,NodeList,Planned,Timelimit", FINISHED, steps=False) == [
        "16G|billing=8,cpu=8,gres/gpu:h100=2,gres/gpu=2,mem=16G,node=1|gpu:h100:2|gpu:h100:2|1|n1|00:01:00|02:00:00"
    ]


def test_sacct_of_a_waiting_job() -> None:
    assert sacct("JobID,State,Start,End,AllocCPUS,AllocTRES,NodeList,Elapsed", WAITING_ARRAY) == [
        "32_[2-31%2]|PENDING|Unknown|Unknown|0||None assigned|00:00:00"
    ]


def test_sacct_refuses_unknown_fields_in_slurms_words() -> None:
    with pytest.raises(SlurmSyntaxError, match='Invalid field requested: "foo"'):
        sacct("JobID,foo", FINISHED)


def test_sizes_and_durations() -> None:
    assert [size(mib, "M", CONTEXT) for mib in (0, 512, 1024, 1500, 4096)] == ["0", "512M", "1G", "1500M", "4G"]
    assert size(4096, "M", CONTEXT._replace(convert=False)) == "4096M"
    assert size(512, "M", CONTEXT._replace(unit="G")) == "0.50G"
    assert (
        tres_text({"node": 1, "cpu": 2, "mem": 32000, "gres/gpu": 1}, CONTEXT) == "cpu=2,mem=32000M,node=1,gres/gpu=1"
    )
    assert [cpu_duration(s) for s in (0.0625, 61.5, 3600, 90061)] == [
        "00:00.062",
        "01:01.500",
        "01:00:00",
        "1-01:01:01",
    ]
    assert id_ranges([3, 0, 1, 2, 8]) == "0-3,8"
