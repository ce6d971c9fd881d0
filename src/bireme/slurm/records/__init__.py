"""Jobs, steps, nodes and partitions as flat JSON-able records: one meaning of each field for the API, the history
and every command.

`jobs`, `steps`, `nodes` and `partitions` build them from the state; nothing here is stored in memory or decides
anything. Times are seconds since the epoch or None, durations end in `_s`, sizes in `_mib` or `_kib`. A text that does
not apply is empty, a number that does not apply is None.

The lists below are the documentation that users of the API get; a test holds them to the tables.
"""

from __future__ import annotations

from bireme.slurm.job_fields.table import FIELDS

_OF_ITS_LIFE = {
    "job_id": "the record's own id",
    "array_job_id": "id of the array it belongs to",
    "array_task_id": "its task id, once it left the array's record",
    "array_tasks": "of an array's record: the tasks that still wait, as `0-30:2%4`",
    "het_job_id": "id of the heterogeneous job's leader",
    "het_offset": "which component of it this is",
    "het_job_id_set": "ids of all its components, as `131-132`",
    "user_id": "owner's uid",
    "user_name": "owner's name",
    "group_id": "owner's gid",
    "group_name": "owner's group",
    "cluster": "name of the cluster",
    "state": "Slurm's state word; COMPLETING while its nodes are cleared",
    "base_state": "the same, but the outcome while it is completing",
    "cancelled_by": "uid of who cancelled it",
    "reason": "Slurm's word for why it waits or failed; `None` when there is nothing to say",
    "reasons": "all that blocks it: [{kind, facts, text}]",
    "system_comment": "what the owner of an idle job was told, or why one was ended for it",
    "submit_time": "when it was submitted",
    "eligible_time": "when it first could have run",
    "accrue_time": "since when its age counts for its priority",
    "start_time": "when it was given its nodes",
    "end_time": "when it ended; of a running job, when its limit ends it",
    "expected_start": "when the latest plan expects it to start",
    "suspended_s": "time spent suspended",
    "suspend_time": "since when it is suspended",
    "elapsed_s": "time run, suspensions left out",
    "preempt_time": "when it was preempted",
    "last_sched_time": "when the planner last looked at it",
    "node_list": "nodes it holds or held, compressed",
    "node_count": "how many those are; before it starts, how many it needs",
    "batch_host": "node of its batch script",
    "shares": "what it holds on each node: [{node, cpus, memory_mib, cpu_ids, gres, tasks}]",
    "planned_nodes": "nodes the planner has in mind for it",
    "num_cpus": "CPUs it holds; before it starts, CPUs it needs",
    "memory_mib": "memory asked, defaults applied; 0 is all of a node",
    "memory_per": "what that is for each of: node, cpu or gpu; None when nothing was asked or configured",
    "gres_requested": "GRES asked on each node, as `gpu:h100:8`",
    "cpus_per_tres": "CPUs asked for each GPU, as `gpu:4`",
    "tres_requested": "what the request adds up to, by TRES name; mem in MiB",
    "tres_allocated": "what it holds or held, by TRES name; mem in MiB",
    "exit_code": "exit code of the job",
    "exit_signal": "signal that ended it; 125 is out of memory, as in Slurm",
    "derived_exit_code": "highest exit code of its steps",
    "derived_exit_signal": "signal with it",
    "restarts": "how often it was queued again",
    "generation": "how often it was started",
    "held_by": "user or admin, while it is held, or will be when it is queued again",
    "usage": "what it consumed so far: {user_cpu_s, system_cpu_s, max_rss_kib, ...}",
}
JOB_FIELDS: dict[str, str] = {**_OF_ITS_LIFE, **{field.record: field.says for field in FIELDS if field.record}}
"""What is no field of what was asked, and the fields of the table."""

STEP_FIELDS: dict[str, str] = {
    "job_id": "id of its job's record",
    "array_job_id": "id of the array its job belongs to",
    "array_task_id": "task id of its job",
    "step_id": "number, or batch, extern, interactive",
    "name": "name",
    "state": "RUNNING, SUSPENDED, or how it ended",
    "cancelled_by": "uid of who cancelled it",
    "exit_code": "highest exit code of its tasks",
    "exit_signal": "signal that ended it",
    "start_time": "when it started",
    "end_time": "when its last task ended",
    "elapsed_s": "time run, suspensions left out",
    "suspended_s": "time its job was suspended",
    "node_list": "its nodes, compressed",
    "node_count": "how many those are",
    "num_tasks": "tasks",
    "num_cpus": "CPUs it has on its nodes",
    "tres_allocated": "what it holds or held, by TRES name; mem in MiB",
    "usage": "what it consumed, as of a job; of a running step, only what already ended",
    "layout": "how its tasks were laid out, as `Cyclic`",
    "submit_line": "the srun that made it",
    "user_id": "owner's uid",
    "user_name": "owner's name",
    "partition": "partition of its job",
    "time_limit_s": "its own limit; None is its job's",
    "cpus_per_task": "CPUs it asked for each task",
    "tres_per_node": "gres that it and its job asked for each node",
    "tres_per_task": "gres it asked for each task",
    "nodes": "its part on each node: [{node, task_ids, cpus, gres}]",
}

NODE_FIELDS: dict[str, str] = {
    "name": "node name",
    "hostname": "host it runs on",
    "address": "how it is reached",
    "port": "port of its agent",
    "state": "base state: IDLE, MIXED, ALLOCATED, DOWN, UNKNOWN",
    "flags": "what stands beside the state: DRAIN, NOT_RESPONDING, COMPLETING ...",
    "cpus": "CPUs (threads)",
    "boards": "boards",
    "sockets": "sockets",
    "cores_per_socket": "cores on each socket",
    "threads_per_core": "threads of each core",
    "cpus_allocated": "CPUs that jobs hold",
    "memory_mib": "memory",
    "memory_allocated_mib": "memory that jobs hold",
    "memory_free_mib": "memory the system has free; None when nobody measured it",
    "tmp_disk_mib": "temporary disk",
    "weight": "lower is preferred",
    "features": "features, a list",
    "gres": "GRES it has, as `gpu:h100:8(S:0-1)`",
    "gres_used": "GRES that jobs hold, as `gpu:h100:2(IDX:0-1)`",
    "partitions": "partitions it is in",
    "reason": "why it was taken out",
    "reason_user": "who did so; filled in by who knows the names",
    "reason_uid": "uid of who did so",
    "reason_time": "when",
    "cpu_load": "load of the machine; None when nobody measured it",
    "boot_time": "when the machine booted",
    "up_since": "when it began to answer",
    "last_busy": "now while it runs a job, else since when it is up",
    "version": "version of its agent",
    "arch": "architecture",
    "os": "operating system",
    "tres": "what it has, by TRES name; mem in MiB",
    "tres_allocated": "what jobs hold, by TRES name; mem in MiB",
    "jobs": "ids of the jobs on it",
    "agent": "what its agent said of itself",
}

PARTITION_EXTRA_FIELDS: dict[str, str] = {
    "total_nodes": "how many nodes it has",
    "total_cpus": "CPUs of all of them",
    "node_list": "its nodes, compressed",
    "tres": "what all of them have, by TRES name; mem in MiB",
}
"""A PartitionRecord has the fields of `PartitionConfig` (core/model/cluster.py) and these."""

CONFIG_FIELDS: dict[str, str] = {
    "cluster": "name of the cluster",
    "source": "the slurm.conf it came from; empty when the machine was discovered",
    "raw": "slurm.conf's global keys as written",
    "settings": "the settings that count, typed, defaults included",
    "topology": "topology plugin",
    "node_count": "nodes",
    "partitions": "partition names",
    "next_job_id": "id of the next job",
}
