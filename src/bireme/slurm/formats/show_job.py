"""`scontrol show job` and `show step`: records as blocks of `Key=Value` lines, in Slurm's order and spacing.

A block is a list of lines without indentation; `block_text` joins it, on one line with -o. Lines that Slurm leaves
out when there is nothing to say are left out here too. Called by `commands/scontrol`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bireme.slurm.formats import job_values as facts
from bireme.slurm.formats.identity import waiting_tasks
from bireme.slurm.formats.values import (
    NULL,
    Context,
    Record,
    exit_text,
    gres_text,
    long_duration,
    or_null,
    size,
    tres_per,
    tres_text,
)  # fmt: skip
from bireme.slurm.formats.visible import visible
from bireme.slurm.hostlist import compress
from bireme.slurm.id_ranges import id_ranges


def block_text(lines: Sequence[str], *, oneliner: bool) -> str:
    """A block with its line breaks; -o puts everything on one line."""
    lines = [visible(line) for line in lines]
    return " ".join(lines) + "\n" if oneliner else "\n   ".join(lines) + "\n\n"


def _time(at: float | None, context: Context, missing: str = "Unknown") -> str:
    return missing if at is None else context.stamp(at)


def job_block(job: Record, context: Context, *, details: bool = False) -> list[str]:
    return [
        *_identity(job),
        *_standing(job, details),
        *_times(job, context),
        *_place(job),
        *_amounts(job, context),
        *(_shares(job) if details else ()),
        *_requirements(job, context),
        *_files(job),
        *_per_tres(job),
        "",
    ]


def _identity(job: Record) -> list[str]:
    head = f"JobId={job['job_id']}"
    extra: list[str] = []
    task = job.get("array_task_id")
    if job.get("array_job_id"):
        tasks = waiting_tasks(job) if task is None else task
        throttle = f" ArrayTaskThrottle={job['array_throttle']}" if job.get("array_throttle") else ""
        head += f" ArrayJobId={job['array_job_id']} ArrayTaskId={tasks}{throttle}"
    elif job.get("het_job_id"):
        head += f" HetJobId={job['het_job_id']} HetJobOffset={job.get('het_offset') or 0}"
        extra = [f"HetJobIdSet={job['het_job_id_set']}"]
    uid, gid = job.get("user_id"), job.get("group_id")
    user, group = job.get("user_name") or uid, job.get("group_name") or gid
    return [
        f"{head} JobName={or_null(job.get('name'))}",
        *extra,
        f"UserId={user}({uid}) GroupId={group}({gid}) MCS_label=N/A",
    ]


def _standing(job: Record, details: bool) -> list[str]:
    requeue = 0 if job.get("requeue") is False else 1
    code = exit_text(job.get("exit_code"), job.get("exit_signal"))
    derived = exit_text(job.get("derived_exit_code"), job.get("derived_exit_signal"))
    return [
        f"Priority={facts.priority(job)} Nice={job.get('nice') or 0} Account={or_null(job.get('account'))} "
        f"QOS={or_null(job.get('qos'))}",
        f"JobState={job['state']} Reason={facts.reason(job)} Dependency={or_null(job.get('dependency'))}",
        f"Requeue={requeue} Restarts={job.get('restarts') or 0} BatchFlag={int(facts.is_batch(job))} Reboot=0 "
        f"ExitCode={code}",
        *([f"DerivedExitCode={derived}"] if details else []),
    ]


def _times(job: Record, context: Context) -> list[str]:
    least = job.get("time_min_s")
    suspended = _time(job.get("suspend_time"), context, "None")
    before_suspension = int(facts.elapsed(job)) if job["state"] == "SUSPENDED" else 0
    preempted = job.get("preempt_time")
    return [
        f"RunTime={long_duration(facts.elapsed(job))} TimeLimit={long_duration(job.get('time_limit_s'))} "
        f"TimeMin={'N/A' if least is None else long_duration(least)}",
        f"SubmitTime={_time(job.get('submit_time'), context)} "
        f"EligibleTime={_time(job.get('eligible_time') or job.get('begin_time'), context)}",
        f"AccrueTime={_time(job.get('accrue_time'), context)}",
        f"StartTime={_time(facts.start_time(job), context)} EndTime={_time(facts.end_time(job), context)} "
        f"Deadline={_time(job.get('deadline'), context, 'N/A')}",
        *([f"PreemptTime={context.stamp(preempted)}"] if preempted is not None else []),
        f"SuspendTime={suspended} SecsPreSuspend={before_suspension} "
        f"LastSchedEval={_time(job.get('last_sched_time') or job.get('start_time'), context)} Scheduler=Main",
    ]


def _place(job: Record) -> list[str]:
    planned = f" SchedNodeList={job['planned_nodes']}" if job.get("planned_nodes") else ""
    lines = [
        f"Partition={or_null(job.get('partition'))} AllocNode:Sid={or_null(job.get('submit_host'))}:0",
        f"ReqNodeList={or_null(job.get('required_nodes'))} ExcNodeList={or_null(job.get('excluded_nodes'))}",
        f"NodeList={job.get('node_list') or ''}{planned}",
    ]
    return [*lines, f"BatchHost={job['batch_host']}"] if job.get("batch_host") else lines


def _amounts(job: Record, context: Context) -> list[str]:
    nodes = str(facts.node_count(job))
    if job["state"] == "PENDING" and job.get("nodes_max"):
        nodes = f"{job.get('nodes_min') or 1}-{job['nodes_max']}"
    tres = tres_text(job.get("tres_allocated") or job.get("tres_requested"), context)
    return [
        f"NumNodes={nodes} NumCPUs={job.get('num_cpus') or 1} NumTasks={job.get('num_tasks') or 'N/A'} "
        f"CPUs/Task={job.get('cpus_per_task') or 1} ReqB:S:C:T=0:0:*:*",
        f"TRES={or_null(tres)}",
        f"Socks/Node=* NtasksPerN:B:S:C={job.get('ntasks_per_node') or 0}:0:{job.get('ntasks_per_socket') or '*'}:"
        f"{job.get('ntasks_per_core') or '*'} CoreSpec={_or_star(job.get('core_spec'))}",
    ]


def _or_star(value: int | None) -> str:
    return "*" if value is None else str(value)


def _shares(job: Record) -> list[str]:
    """-d: what the job holds on which nodes, nodes with equal shares together."""
    shares = job.get("shares") or []
    if not shares:
        return []
    totals: dict[str, int] = {}
    groups: dict[str, list[str]] = {}
    for share in shares:
        for gres in share.get("gres") or []:
            name = ":".join(filter(None, (gres["name"], gres.get("type"))))
            totals[name] = totals.get(name, 0) + gres["count"]
        held = f"CPU_IDs={id_ranges(share.get('cpu_ids') or ())} Mem={share.get('memory_mib') or 0} GRES="
        held += ",".join(_held_gres(gres) for gres in share.get("gres") or [])
        groups.setdefault(held, []).append(share["node"])
    lines = [f"  Nodes={compress(names)} {held}" for held, names in groups.items()]
    return ["JOB_GRES=" + (",".join(f"{name}:{count}" for name, count in totals.items()) or NULL), *lines]


def _held_gres(gres: Record) -> str:
    indices = gres.get("indices") or ()
    return gres_text(gres) + (f"(IDX:{id_ranges(indices)})" if indices else f"(CNT:{gres['count']})")


def _requirements(job: Record, context: Context) -> list[str]:
    per = "CPU" if job.get("memory_per") == "cpu" else "Node"
    return [
        f"MinCPUsNode={facts.min_cpus(job)} MinMemory{per}={facts.min_memory(job, context)} "
        f"MinTmpDiskNode={size(job.get('tmp_disk_mib'), 'M', context)}",
        f"Features={or_null(job.get('features'))} DelayBoot=00:00:00",
        *([f"Reservation={job['reservation']}"] if job.get("reservation") else []),
        f"OverSubscribe={job.get('oversubscribe') or 'OK'} Contiguous={int(bool(job.get('contiguous')))} "
        f"Licenses={or_null(job.get('licenses'))} Network=(null)",
    ]


def _files(job: Record) -> list[str]:
    command = " ".join(filter(None, [str(job.get("command") or ""), *(job.get("argv") or ())]))
    lines = [f"Command={or_null(command)}", f"WorkDir={or_null(job.get('work_dir'))}"]
    for key, name in (("admin_comment", "AdminComment"), ("comment", "Comment")):
        if job.get(key):
            lines.append(f"{name}={job[key]} ")
    if facts.is_batch(job):
        std_out = or_null(job.get("std_out"))
        lines += [
            f"StdErr={job.get('std_err') or std_out}",
            f"StdIn={job.get('std_in') or '/dev/null'}",
            f"StdOut={std_out}",
        ]
    if job.get("switches"):
        lines.append(f"Switches={job['switches']}@{long_duration(job.get('switches_wait_s') or 0)}")
    lines.append("Power=")
    if job.get("expedite_requeue"):
        lines.append("ExpeditedRequeue=Yes")
    return lines


def _per_tres(job: Record) -> list[str]:
    lines: list[str] = []
    if job.get("cpus_per_tres"):
        lines.append(f"CpusPerTres={tres_per(job['cpus_per_tres'])}")
    if job.get("memory_per") == "gpu":
        lines.append(f"MemPerTres=gres:gpu:{job.get('memory_mib')}")
    for name, value in (
        ("TresPerJob", tres_per(job.get("tres_per_job"))),
        ("TresPerNode", facts.per_node(job)),
        ("TresPerSocket", tres_per(job.get("tres_per_socket"))),
        ("TresPerTask", tres_per(job.get("tres_per_task"))),
    ):
        if value:
            lines.append(f"{name}={value}")
    kinds = job.get("mail_type") or ()
    if kinds:
        types = kinds if isinstance(kinds, str) else ",".join(kinds)
        lines.append(f"MailUser={job.get('mail_user') or job.get('user_name')} MailType={types}")
    return lines


def step_block(step: Record, context: Context, label: str) -> list[str]:
    """`label` is the step's id as people read it, `42_7.0`."""
    numbered = isinstance(step["step_id"], int)
    tres = tres_text(step.get("tres_allocated"), context, alphabetical=True) if numbered else ""
    layout = f" Dist={str(step.get('layout') or 'Block').capitalize()}" if numbered else ""
    return [
        f"StepId={label} UserId={step.get('user_id') or 0} StartTime={_time(step.get('start_time'), context)} "
        f"TimeLimit={long_duration(step.get('time_limit_s'))}",
        f"State={step.get('state')} Partition={or_null(step.get('partition'))} "
        f"NodeList={or_null(step.get('node_list'))}",
        f"Nodes={step.get('node_count') or 1} CPUs={step.get('num_cpus') or 0 if numbered else 0} "
        f"Tasks={step.get('num_tasks') or 1} Name={or_null(step.get('name'))} Network=(null)",
        f"TRES={or_null(tres)}",
        "ResvPorts=(null)",
        f"CPUFreqReq=Default{layout}",
        f"SrunHost:Pid={or_null(step.get('submit_host'))}:{step.get('submit_pid') or 0}",
        *(_step_tres(step) if numbered else ()),
    ]


def _step_tres(step: Record) -> Iterator[str]:
    """What the step asked for, and of its job, where srun inherited that."""
    each = [f"cpu:{step['cpus_per_task']}"] if step.get("cpus_per_task") else []
    each += tres_per(step.get("tres_per_task")).split(",") if step.get("tres_per_task") else []
    yield f"TresPerStep=cpu:{(step.get('num_tasks') or 1) * (step.get('cpus_per_task') or 1)}"
    if step.get("tres_per_node"):
        yield f"TresPerNode={tres_per(step['tres_per_node'])}"
    if each:
        yield f"TresPerTask={','.join(each)}"
