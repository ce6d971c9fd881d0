"""The words that the values of some options may be, and the texts that `--hint=help` and the like print."""

from __future__ import annotations

from bireme.slurm.options.catalogue.table import Command

SUBMISSION_FAILED = {
    Command.SBATCH: "Batch job submission failed",
    Command.SALLOC: "Job submit/allocate failed",
    Command.SRUN: "Unable to allocate resources",
}
"""How each command begins when the cluster refuses a job."""

HINTS = ("compute_bound", "memory_bound", "multithread", "nomultithread")
HINT_HELP = """\
Application hint options:
    --hint=             What the program needs of the CPUs
        compute_bound   all cores of each socket
        memory_bound    one core of each socket
        [no]multithread more than one thread of a core, or only one
        help            this text"""

CPU_BIND = (
    r"(?:q|quiet|v|verbose)|"
    r"(?:(?:q|quiet|v|verbose),)?"
    r"(?:none|no|yes|rank|rank_ldom|threads?|cores?|sockets?|ldoms?|boards?|"
    r"(?:map_cpu|map_ldom|mask_cpu|mask_ldom)(?::[0-9a-fx,*+-]+)?)"
)
CPU_BIND_HELP = """\
CPU bind options:
    --cpu-bind=         Bind tasks to CPUs
        q[uiet]         say nothing before the tasks run (default)
        v[erbose]       report the binding before the tasks run
        no[ne]          do not bind
        rank            by task number
        map_cpu:<list>  these CPU numbers, one a task
        mask_cpu:<list> these CPU masks, one a task
        threads, cores, sockets, ldoms
                        to whole threads, cores, sockets or NUMA domains
        help            this text"""

GPU_BIND = (
    r"none|(?:v(?:erbose)?,)?(?:none|closest|single:[0-9]+|per_task:[0-9]+|"
    r"map_gpu:[0-9]+(?:\*[0-9]+)?(?:,[0-9]+(?:\*[0-9]+)?)*|"
    r"mask_gpu:(?:0x)?[0-9a-f]+(?:\*[0-9]+)?(?:,(?:0x)?[0-9a-f]+(?:\*[0-9]+)?)*)"
)

MEM_BIND = (
    r"(?:q|quiet|v|verbose)|(?:(?:q|quiet|v|verbose),)?"
    r"(?:none|no|rank|local|(?:no)?sort|prefer|(?:map_mem|mask_mem)(?::[0-9a-fx,*]+)?)"
    r"(?:,(?:none|no|rank|local|(?:no)?sort|prefer|p|(?:map_mem|mask_mem)(?::[0-9a-fx,*]+)?))*"
)
MEM_BIND_HELP = """\
Memory bind options:
    --mem-bind=         Bind tasks to memory
        no[ne]          do not bind
        local           to the memory near the task's CPUs
        rank            by task number
        map_mem:<list>, mask_mem:<list>
                        to these NUMA nodes, one a task
        help            this text"""

MPI_TYPES = ("none", "pmi2")
"""What srun serves. A program built for PMIx only cannot find its peers through either, so `pmix` is refused."""

GRES_FLAGS = (
    "disable-binding",
    "enforce-binding",
    "allow-task-sharing",
    "multiple-tasks-per-sharing",
    "one-task-per-sharing",
)

MAIL_TYPES = (
    "BEGIN", "END", "FAIL", "REQUEUE", "INVALID_DEPEND", "STAGE_OUT", "TIME_LIMIT", "TIME_LIMIT_90",
    "TIME_LIMIT_80", "TIME_LIMIT_50", "ARRAY_TASKS",
)  # fmt: skip
MAIL_GROUPS = {"ALL": ("INVALID_DEPEND", "BEGIN", "END", "FAIL", "REQUEUE", "STAGE_OUT")}

RLIMITS = frozenset(["ALL", "NONE", "AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "RSS", "STACK"])
"""Resource limits that --propagate may name, with or without RLIMIT_ before them."""
