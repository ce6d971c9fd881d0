"""The options that describe a job: what it needs, where, when, for whom, and where its output goes.

Rows of the catalogue, nothing else; `rows.option` explains how to read one.
"""

from __future__ import annotations

from bireme.slurm.options.rows import ALL, OUTPUT, SBATCH, SUBMIT, TERMINAL, option
from bireme.slurm.options.table import Command, Kind, Option

RESOURCES = "Resources"
GPUS = "GPUs and other generic resources"
PLACEMENT = "Where to run"
TIME = "When to run"
IDENTITY = "Who and what for"
FILES = "Files and environment"
END = "How it ends and what it tells"

_NOT_PLACED = "recorded; placement does not weigh it yet"
_NO_BURST_BUFFER = "there is no burst buffer here"
_NO_POWER = "power is not managed"
_WHOLE_NODES_ONLY = "nodes are not rebooted for jobs"
_OWN_USER = "a job runs as the user who submits it"

# A row is easier to compare with its neighbours on few lines.
# fmt: off
_RESOURCE_ROWS = (
    option("N", "nodes=MIN[-MAX]", ALL, Kind.NODES, RESOURCES, "how many nodes, exactly or from MIN to MAX",
           variables={Command.SRUN: ("SLURM_JOB_NUM_NODES",)}),
    option("n", "ntasks=N", ALL, Kind.COUNT, RESOURCES, "how many tasks",
           variables={Command.SRUN: ("SLURM_NPROCS", "SLURM_NTASKS")}),
    option("c", "cpus-per-task=N", ALL, Kind.COUNT, RESOURCES, "CPUs for each task",
           variables={Command.SRUN: ("SRUN_CPUS_PER_TASK",)}),
    option("", "ntasks-per-node=N", ALL, Kind.COUNT, RESOURCES, "tasks on each node",
           variables={Command.SRUN: ("SLURM_NTASKS_PER_NODE",)}),
    option("", "tasks-per-node=N", ALL, Kind.COUNT, RESOURCES, "the same as --ntasks-per-node",
           alias_of="ntasks-per-node"),
    option("", "ntasks-per-socket=N", ALL, Kind.COUNT, RESOURCES, "tasks on each socket, at most",
           variables={Command.SRUN: ("SLURM_NTASKS_PER_SOCKET",)}),
    option("", "ntasks-per-core=N", ALL, Kind.COUNT, RESOURCES, "tasks on each core, at most",
           variables={Command.SRUN: ("SLURM_NTASKS_PER_CORE",)}),
    option("", "mem=SIZE[K|M|G|T]", ALL, Kind.MEMORY, RESOURCES, "memory on each node; 0 is all of it",
           env="MEM_PER_NODE"),
    option("", "mem-per-cpu=SIZE[K|M|G|T]", ALL, Kind.MEMORY, RESOURCES, "memory for each CPU", env="MEM_PER_CPU"),
    option("", "mincpus=N", ALL, Kind.COUNT, RESOURCES, "CPUs a node must have at least"),
    option("", "tmp=SIZE[K|M|G|T]", ALL, Kind.SIZE, RESOURCES, "temporary disk on each node"),
    option("", "exclusive[=user|mcs|topo]", ALL, Kind.EXCLUSIVE, RESOURCES,
           "share nodes with no other job (user: with one's own only)", env="EXCLUSIVE"),
    option("s", "oversubscribe", ALL, Kind.FLAG, RESOURCES, "may share resources with other jobs",
           ignored="recorded; CPUs and devices are not shared between jobs"),
    option("O", "overcommit", ALL, Kind.FLAG, RESOURCES, "more tasks than CPUs are welcome", env="OVERCOMMIT"),
    option("B", "extra-node-info=SOCKETS[:CORES[:THREADS]]", ALL, Kind.NODE_SHAPE, RESOURCES,
           "sockets a node, cores a socket, threads a core"),
    option("", "sockets-per-node=N", ALL, Kind.COUNT, RESOURCES, "sockets a node must have"),
    option("", "cores-per-socket=N", ALL, Kind.COUNT, RESOURCES, "cores a socket must have"),
    option("", "threads-per-core=N", ALL, Kind.COUNT, RESOURCES, "threads to use of each core",
           env="THREADS_PER_CORE"),
    option("", "hint=TYPE", ALL, Kind.HINT, RESOURCES, "compute_bound, memory_bound, multithread, nomultithread",
           variables={Command.SBATCH: ("SLURM_HINT", "SBATCH_HINT"), Command.SRUN: ("SLURM_HINT",),
                      Command.SALLOC: ("SLURM_HINT", "SALLOC_HINT")}),
    option("L", "licenses=NAME[:N],...", ALL, Kind.TEXT, RESOURCES, "licenses to hold while running"),
    option("S", "core-spec=N", ALL, Kind.NUMBER, RESOURCES, "cores left to the system", env="CORE_SPEC",
           ignored="no cores are set aside for the system"),
    option("", "thread-spec=N", ALL, Kind.NUMBER, RESOURCES, "threads left to the system", env="THREAD_SPEC",
           ignored="no threads are set aside for the system"),
    option("", "bb=SPEC", ALL, Kind.TEXT, RESOURCES, "burst buffer", env="BURST_BUFFER", ignored=_NO_BURST_BUFFER),
    option("", "bbf=FILE", ALL, Kind.TEXT, RESOURCES, "burst buffer specification file", ignored=_NO_BURST_BUFFER),
)

_GPU_ROWS = (
    option("", "gres=NAME[:TYPE][:N],...", ALL, Kind.GRES, GPUS, "generic resources on each node", env="GRES",
           variables={Command.SRUN: ("SLURM_GRES", "SLURM_STEP_GRES")}),
    option("G", "gpus=[TYPE:]N", ALL, Kind.GPUS, GPUS, "GPUs for the whole job", env="GPUS"),
    option("", "gpus-per-node=[TYPE:]N", ALL, Kind.GPUS, GPUS, "GPUs on each node", env="GPUS_PER_NODE"),
    option("", "gpus-per-task=[TYPE:]N", ALL, Kind.GPUS, GPUS, "GPUs for each task", env="GPUS_PER_TASK"),
    option("", "gpus-per-socket=[TYPE:]N", ALL, Kind.GPUS, GPUS, "GPUs on each socket", env="GPUS_PER_SOCKET"),
    option("", "cpus-per-gpu=N", ALL, Kind.COUNT, GPUS, "CPUs for each GPU", env="CPUS_PER_GPU"),
    option("", "mem-per-gpu=SIZE[K|M|G|T]", ALL, Kind.MEMORY, GPUS, "memory for each GPU", env="MEM_PER_GPU"),
    option("", "ntasks-per-gpu=N", ALL, Kind.COUNT, GPUS, "tasks for each GPU",
           variables={Command.SRUN: ("SLURM_NTASKS_PER_GPU",)}),
    option("", "ntasks-per-tres=N", ALL, Kind.COUNT, GPUS, "the same as --ntasks-per-gpu", alias_of="ntasks-per-gpu"),
    option("", "tres-per-task=NAME=N,...", ALL, Kind.TRES_PER_TASK, GPUS, "CPUs and generic resources for each task",
           env="TRES_PER_TASK"),
    option("", "gres-flags=TYPE", ALL, Kind.GRES_FLAGS, GPUS, "how devices are tied to CPUs and tasks",
           env="GRES_FLAGS", ignored=_NOT_PLACED),
    option("", "gpu-freq=[TYPE=]VALUE,...", ALL, Kind.TEXT, GPUS, "clock rate of the GPUs", env="GPU_FREQ",
           ignored="clock rates are left alone"),
)

_PLACEMENT_ROWS = (
    option("p", "partition=NAME,...", ALL, Kind.TEXT, PLACEMENT, "partitions to try", env="PARTITION"),
    option("w", "nodelist=HOSTS", ALL, Kind.HOSTS, PLACEMENT, "these nodes, and others if more are needed"),
    option("x", "exclude=HOSTS", ALL, Kind.HOSTS, PLACEMENT, "not these nodes"),
    option("F", "nodefile=FILE", ALL, Kind.TEXT, PLACEMENT, "a file with a list of nodes, as --nodelist"),
    option("C", "constraint=FEATURES", ALL, Kind.TEXT, PLACEMENT, "features a node must have", env="CONSTRAINT"),
    option("", "prefer=FEATURES", ALL, Kind.TEXT, PLACEMENT, "features a node should have", env="PREFER"),
    option("", "batch=FEATURES", SBATCH, Kind.TEXT, PLACEMENT, "features of the node that runs the script",
           env="BATCH", ignored=_NOT_PLACED),
    option("", "cluster-constraint=[!]LIST", ALL, Kind.TEXT, PLACEMENT, "features a cluster must have",
           env="CLUSTER_CONSTRAINT", ignored="there is one cluster, not a federation"),
    option("", "contiguous", ALL, Kind.FLAG, PLACEMENT, "nodes next to each other"),
    option("m", "distribution=METHOD", ALL, Kind.DISTRIBUTION, PLACEMENT, "how tasks are dealt to nodes and CPUs",
           env="DISTRIBUTION"),
    option("", "spread-job", ALL, Kind.FLAG, PLACEMENT, "as many nodes as possible", env="SPREAD_JOB"),
    option("", "use-min-nodes", ALL, Kind.FLAG, PLACEMENT, "the smaller number of a range of nodes",
           env="USE_MIN_NODES"),
    option("", "switches=N[@TIME]", ALL, Kind.SWITCHES, PLACEMENT, "switches at most, and how long to wait for it",
           env="REQ_SWITCH"),
    option("", "segment=N", ALL, Kind.COUNT, PLACEMENT, "nodes in each segment of a block topology",
           env="SEGMENT_SIZE"),
    option("", "consolidate-segments", ALL, Kind.FLAG, PLACEMENT, "segments of a job in as few blocks as possible",
           env="CONSOLIDATE_SEGMENTS", ignored="segments lie in the blocks that hold them best"),
    option("", "spread-segments", ALL, Kind.FLAG, PLACEMENT, "each segment of a job in another block",
           env="SPREAD_SEGMENTS", ignored=_NOT_PLACED),
    option("", "reservation=NAME,...", ALL, Kind.TEXT, PLACEMENT, "run in a reservation", env="RESERVATION"),
    option("M", "clusters=NAME,...", ALL, Kind.TEXT, PLACEMENT, "clusters to submit to",
           variables={Command.SBATCH: ("SLURM_CLUSTERS", "SBATCH_CLUSTERS"), Command.SRUN: ("SLURM_CLUSTERS",),
                      Command.SALLOC: ("SLURM_CLUSTERS", "SALLOC_CLUSTERS")}),
    option("", "cluster=NAME,...", ALL, Kind.TEXT, PLACEMENT, "the same as --clusters", alias_of="clusters"),
)

_TIME_ROWS = (
    option("t", "time=TIME", ALL, Kind.DURATION, TIME, "time limit: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM:SS",
           env="TIMELIMIT"),
    option("", "time-min=TIME", ALL, Kind.DURATION, TIME, "a shorter limit that is accepted to start sooner"),
    option("b", "begin=TIME", ALL, Kind.MOMENT, TIME, "not before this time"),
    option("", "deadline=TIME", ALL, Kind.MOMENT, TIME, "remove the job if it cannot end by then"),
    option("d", "dependency=TYPE:JOB,...", ALL, Kind.DEPENDENCY, TIME, "wait for other jobs",
           variables={Command.SRUN: ("SLURM_DEPENDENCY",)}),
    option("", "kill-on-invalid-dep=yes|no", SBATCH, Kind.YES_NO, TIME,
           "end the job when its dependency can never be met"),
    option("a", "array=INDEXES[%LIMIT]", SBATCH, Kind.ARRAY, TIME, "one task for each index", env="ARRAY_INX"),
    option("H", "hold", ALL, Kind.FLAG, TIME, "submit, and wait for release"),
    option("", "nice[=N]", ALL, Kind.NICE, TIME, "lower (or, for the operator, raise) the priority"),
    option("", "priority=N|TOP", ALL, Kind.PRIORITY, TIME, "set the priority"),
    option("I", "immediate[=SECONDS]", TERMINAL, Kind.IMMEDIATE, TIME, "give up if it cannot start at once",
           env="IMMEDIATE"),
    option("", "test-only", OUTPUT, Kind.FLAG, TIME, "say when and where it would start, and do nothing"),
    option("", "delay-boot=MINUTES", ALL, Kind.DURATION, TIME, "wait for a node that need not be rebooted",
           env="DELAY_BOOT", ignored=_WHOLE_NODES_ONLY),
    option("", "reboot", ALL, Kind.FLAG, TIME, "reboot the nodes first", ignored=_WHOLE_NODES_ONLY),
)

_IDENTITY_ROWS = (
    option("A", "account=NAME", ALL, Kind.TEXT, IDENTITY, "charge this account", env="ACCOUNT"),
    option("q", "qos=NAME", ALL, Kind.TEXT, IDENTITY, "quality of service", env="QOS"),
    option("J", "job-name=NAME", ALL, Kind.TEXT, IDENTITY, "name of the job",
           variables={Command.SBATCH: ("SBATCH_JOB_NAME",), Command.SRUN: ("SLURM_JOB_NAME",),
                      Command.SALLOC: ("SALLOC_JOB_NAME",)}),
    option("", "comment=TEXT", ALL, Kind.TEXT, IDENTITY, "a comment kept with the job"),
    option("", "wckey=KEY", ALL, Kind.TEXT, IDENTITY, "workload characterization key", env="WCKEY"),
    option("", "extra=TEXT", ALL, Kind.TEXT, IDENTITY, "text for site plugins", ignored="there are no site plugins"),
    option("", "mcs-label=LABEL", ALL, Kind.TEXT, IDENTITY, "multi-category security label",
           ignored="there are no security labels"),
    option("", "context=TEXT", ALL, Kind.TEXT, IDENTITY, "SELinux context",
           ignored="SELinux contexts are left alone"),
    option("", "uid=USER", ALL, Kind.TEXT, IDENTITY, "run as another user (root only)", ignored=_OWN_USER),
    option("", "gid=GROUP", ALL, Kind.TEXT, IDENTITY, "run as another group (root only)", ignored=_OWN_USER),
)

_FILE_ROWS = (
    option("o", "output=PATTERN", OUTPUT, Kind.TEXT, FILES, "file for standard output",
           variables={Command.SBATCH: ("SBATCH_OUTPUT",), Command.SRUN: ("SLURM_STDOUTMODE",)}),
    option("e", "error=PATTERN", OUTPUT, Kind.TEXT, FILES, "file for standard error",
           variables={Command.SBATCH: ("SBATCH_ERROR",), Command.SRUN: ("SLURM_STDERRMODE",)}),
    option("i", "input=PATTERN", OUTPUT, Kind.TEXT, FILES, "file for standard input",
           variables={Command.SBATCH: ("SBATCH_INPUT",), Command.SRUN: ("SLURM_STDINMODE",)}),
    option("", "open-mode=append|truncate", OUTPUT, Kind.OPEN_MODE, FILES, "how output files are opened",
           env="OPEN_MODE"),
    option("D", "chdir=DIRECTORY", ALL, Kind.TEXT, FILES, "working directory",
           variables={Command.SRUN: ("SLURM_REMOTE_CWD", "SLURM_WORKING_DIR")}),
    option("", "export=ALL|NONE|NIL|NAME[=VALUE],...", OUTPUT, Kind.TEXT, FILES, "which variables go with the job",
           variables={Command.SBATCH: ("SBATCH_EXPORT",), Command.SRUN: ("SLURM_EXPORT_ENV", "SRUN_EXPORT_ENV")}),
    option("", "export-file=FILE|FD", SBATCH, Kind.TEXT, FILES, "variables from a file of NAME=VALUE, NUL between"),
    option("", "get-user-env[=SECONDS[MODE]]", SUBMIT, Kind.USER_ENV, FILES, "begin with the login environment",
           variables={Command.SBATCH: ("SBATCH_GET_USER_ENV",)}),
    option("", "propagate[=LIMIT,...]", OUTPUT, Kind.PROPAGATE, FILES, "which resource limits go with the job",
           ignored="jobs run with the limits of the machine they run on"),
)

_END_ROWS = (
    option("", "requeue[=expedite]", SBATCH, Kind.REQUEUE, END,
           "may be started again after a lost node or a preemption; expedite: before all others", env="REQUEUE"),
    option("", "no-requeue", SBATCH, Kind.FLAG, END, "never started again", env="NO_REQUEUE", alias_of="requeue"),
    option("k", "no-kill[=off]", ALL, Kind.NO_KILL, END, "go on when a node is lost", env="NO_KILL",
           ignored="recorded; a job ends with any of its nodes"),
    option("", "signal=[R][B:]SIGNAL[@SECONDS]", ALL, Kind.SIGNAL, END, "a signal before the time limit",
           env="SIGNAL"),
    option("", "mail-type=TYPE,...", ALL, Kind.MAIL_TYPE, END, "events to mail about", ignored="no mail is sent yet"),
    option("", "mail-user=ADDRESS", ALL, Kind.TEXT, END, "who gets the mail", ignored="no mail is sent yet"),
    option("W", "wait", SBATCH, Kind.FLAG, END, "return when the job has ended, with its exit code", env="WAIT"),
    option("", "wait-all-nodes=0|1", SUBMIT, Kind.ZERO_OR_ONE, END, "begin when all nodes are ready",
           env="WAIT_ALL_NODES"),
    option("", "acctg-freq=TYPE=SECONDS,...", ALL, Kind.TEXT, END, "how often usage is sampled", env="ACCTG_FREQ",
           ignored="usage is sampled at one rate"),
    option("", "profile=TYPE,...", ALL, Kind.PROFILE, END, "profile the job", env="PROFILE",
           ignored="there is no profiling plugin"),
    option("", "power=FLAGS", ALL, Kind.TEXT, END, "power management", env="POWER", ignored=_NO_POWER),
    option("", "cpu-freq=MIN[-MAX[:GOVERNOR]]", ALL, Kind.TEXT, END, "clock rate of the CPUs", env="CPU_FREQ_REQ",
           ignored="clock rates are left alone"),
    option("", "network=TYPE", ALL, Kind.TEXT, END, "network of the job", env="NETWORK",
           ignored="there is no switch plugin"),
    option("", "oom-kill-step[=0|1]", ALL, Kind.ZERO_OR_ONE, END,
           "end the whole step when one task runs out of memory", env="OOM_KILL_STEP",
           ignored="an out-of-memory task ends its step as --kill-on-bad-exit says"),
    option("", "stepmgr", SUBMIT, Kind.FLAG, END, "manage the steps on the job's first node",
           ignored="steps are cheap here: the daemon manages them"),
    option("", "resv-ports[=N]", ALL, Kind.NUMBER, END, "reserve communication ports",
           variables={Command.SRUN: ("SLURM_RESV_PORTS",)}, ignored="ports are not reserved"),
    option("", "external", SUBMIT, Kind.FLAG, END, "an allocation whose processes are not managed",
           ignored="every job's processes are managed"),
)

_BATCH_ROWS = (
    option("", "wrap=COMMAND", SBATCH, Kind.TEXT, IDENTITY, "run a command line instead of a script"),
    option("", "parsable", SBATCH, Kind.FLAG, END, "print the job id alone"),
    option("", "ignore-pbs", SBATCH, Kind.FLAG, FILES, "do not read #PBS and #BSUB lines", env="IGNORE_PBS"),
)

# fmt: on
JOB_ROWS: tuple[Option, ...] = (
    *_RESOURCE_ROWS,
    *_GPU_ROWS,
    *_PLACEMENT_ROWS,
    *_TIME_ROWS,
    *_IDENTITY_ROWS,
    *_FILE_ROWS,
    *_END_ROWS,
    *_BATCH_ROWS,
)
