"""The options that say how tasks are started and watched: srun's own, and what every command has.

Rows of the catalogue, nothing else; `rows.option` explains how to read one.
"""

from __future__ import annotations

from bireme.slurm.options.catalogue.rows import ALL, SALLOC, SBATCH, SRUN, TERMINAL, option
from bireme.slurm.options.catalogue.table import Command, Kind, Option

STEP = "Steps and tasks"
BINDING = "Binding"
STREAMS = "Streams and signals"
COMMAND = "This command"

_NO_COPY = "programs are not copied: nodes see the same files"

# A row is easier to compare with its neighbours on few lines.
# fmt: off
_STEP_ROWS = (
    option("", "jobid=JOB", SRUN, Kind.NUMBER, STEP, "start the step in this job",
           variables={Command.SRUN: ("SLURM_JOBID", "SLURM_JOB_ID")}),
    option("", "het-group=COMPONENTS", SRUN, Kind.HET_GROUP, STEP, "components of a heterogeneous job to start in"),
    option("", "het-group=COMPONENTS", SBATCH, Kind.TEXT, STEP, "an option of srun that some scripts carry",
           ignored="only srun starts steps in components"),
    option("", "pack-group=COMPONENTS", SRUN, Kind.HET_GROUP, STEP, "the same as --het-group", alias_of="het-group"),
    option("r", "relative=N", SRUN, Kind.NUMBER, STEP, "begin at the job's Nth node"),
    option("", "exact", SRUN, Kind.FLAG, STEP, "use only what the step asks for",
           variables={Command.SRUN: ("SLURM_EXACT",)}),
    option("", "whole", SRUN, Kind.FLAG, STEP, "use all of the job's resources",
           variables={Command.SRUN: ("SLURM_WHOLE",)}),
    option("", "overlap[=force]", SRUN, Kind.TEXT, STEP, "may share resources with other steps",
           variables={Command.SRUN: ("SLURM_OVERLAP",)}),
    option("", "multi-prog", SRUN, Kind.FLAG, STEP, "the program is a file that names one for each task",
           variables={Command.SRUN: ("SLURM_SRUN_MULTI",)}),
    option("K", "kill-on-bad-exit[=0|1]", SRUN, Kind.NUMBER, STEP, "end the step when a task fails",
           variables={Command.SRUN: ("SLURM_KILL_BAD_EXIT",)}),
    option("W", "wait=SECONDS", SRUN, Kind.NUMBER, STEP, "how long the others may go on after the first task ended",
           variables={Command.SRUN: ("SLURM_WAIT",)}),
    option("", "mpi=TYPE", SRUN, Kind.MPI, STEP, "none or pmi2", variables={Command.SRUN: ("SLURM_MPI_TYPE",)}),
    option("", "task-prolog=PROGRAM", SRUN, Kind.TEXT, STEP, "run before each task",
           variables={Command.SRUN: ("SLURM_TASK_PROLOG",)}),
    option("", "task-epilog=PROGRAM", SRUN, Kind.TEXT, STEP, "run after each task",
           variables={Command.SRUN: ("SLURM_TASK_EPILOG",)}),
    option("", "prolog=PROGRAM", SRUN, Kind.TEXT, STEP, "run by srun before the step",
           variables={Command.SRUN: ("SLURM_PROLOG",)}),
    option("", "epilog=PROGRAM", SRUN, Kind.TEXT, STEP, "run by srun after the step",
           variables={Command.SRUN: ("SLURM_EPILOG",)}),
    option("E", "preserve-env", SRUN, Kind.FLAG, STEP, "pass SLURM_NNODES and SLURM_NTASKS on unchanged",
           variables={Command.SRUN: ("SLURM_PRESERVE_ENV",)}, ignored="a step's variables say what the step has"),
    option("T", "threads=N", SRUN, Kind.COUNT, STEP, "launch threads", variables={Command.SRUN: ("SLURM_THREADS",)},
           ignored="all tasks are launched at once"),
    option("Z", "no-allocate", SRUN, Kind.FLAG, STEP, "run without an allocation (root only)",
           ignored="every task belongs to a job"),
    option("", "msg-timeout=SECONDS", SRUN, Kind.COUNT, STEP, "how long to wait for an answer",
           ignored="the wait is fixed"),
    option("", "bcast[=PATH]", SRUN, Kind.TEXT, STEP, "copy the program to the nodes",
           variables={Command.SRUN: ("SLURM_BCAST",)}, ignored=_NO_COPY),
    option("", "bcast-exclude=PATH,...", SRUN, Kind.TEXT, STEP, "libraries not to copy",
           variables={Command.SRUN: ("SLURM_BCAST_EXCLUDE",)}, ignored=_NO_COPY),
    option("", "send-libs[=yes|no]", SRUN, Kind.YES_NO, STEP, "copy libraries too",
           variables={Command.SRUN: ("SLURM_SEND_LIBS",)}, ignored=_NO_COPY),
    option("", "compress[=TYPE]", SRUN, Kind.TEXT, STEP, "compress what is copied",
           variables={Command.SRUN: ("SLURM_COMPRESS",)}, ignored=_NO_COPY),
    option("", "treewidth=N", SRUN, Kind.COUNT, STEP, "fan-out of launch messages",
           variables={Command.SRUN: ("SLURM_TREE_WIDTH",)}, ignored="messages go straight to each node"),
    option("", "wait-for-children", SRUN, Kind.FLAG, STEP, "a task ends when its last process does",
           variables={Command.SRUN: ("SLURM_WAIT_FOR_CHILDREN",)}, ignored="a task ends with its first process"),
    option("", "debugger-test", SRUN, Kind.FLAG, STEP, "launch under a debugger",
           ignored="there is no debugger support"),
    option("", "slurmd-debug=LEVEL", SRUN, Kind.TEXT, STEP, "log level on the nodes",
           variables={Command.SRUN: ("SLURMD_DEBUG",)}, ignored="the agents' log level is a setting"),
    option("", "interactive", SRUN, Kind.FLAG, STEP, "salloc's own shell on the first node"),
)

_BINDING_ROWS = (
    option("", "cpu-bind=[quiet,|verbose,]TYPE", SRUN, Kind.CPU_BIND, BINDING, "bind tasks to CPUs",
           variables={Command.SRUN: ("SLURM_CPU_BIND",)}),
    option("", "gpu-bind=[verbose,]TYPE", ALL, Kind.GPU_BIND, BINDING, "bind tasks to GPUs", env="GPU_BIND"),
    option("", "tres-bind=TRES:[verbose,]TYPE", ALL, Kind.TEXT, BINDING, "bind tasks to generic resources",
           env="TRES_BIND", ignored="use --gpu-bind for GPUs"),
    option("", "mem-bind=[quiet,|verbose,]TYPE", ALL, Kind.MEM_BIND, BINDING, "bind tasks to memory", env="MEM_BIND",
           ignored="memory is not bound to NUMA nodes"),
    option("", "accel-bind=TYPE", SRUN, Kind.BIND, BINDING, "bind tasks to near devices",
           ignored="use --gpu-bind for GPUs"),
)

_STREAM_ROWS = (
    option("l", "label", SRUN, Kind.FLAG, STREAMS, "task number in front of each line",
           variables={Command.SRUN: ("SLURM_LABELIO",)}),
    option("u", "unbuffered", SRUN, Kind.FLAG, STREAMS, "output as it comes, not by lines",
           variables={Command.SRUN: ("SLURM_UNBUFFEREDIO",)}),
    option("", "pty[=FD]", SRUN, Kind.TEXT, STREAMS, "task 0 in a terminal"),
    option("X", "disable-status", SRUN, Kind.FLAG, STREAMS, "no report at the first Ctrl-C: it is passed on",
           variables={Command.SRUN: ("SLURM_DISABLE_STATUS",)}),
    option("", "quit-on-interrupt", SRUN, Kind.FLAG, STREAMS, "end at the first Ctrl-C"),
    option("K", "kill-command[=SIGNAL]", SALLOC, Kind.KILL_SIGNAL, STREAMS,
           "signal for the command when the job ends", variables={Command.SALLOC: ("SALLOC_KILL_CMD",)}),
    option("", "no-shell", SALLOC, Kind.FLAG, STREAMS, "hold the allocation without a command"),
    option("", "bell", SALLOC, Kind.FLAG, STREAMS, "ring when the job starts",
           variables={Command.SALLOC: ("SALLOC_BELL",)}),
    option("", "no-bell", SALLOC, Kind.FLAG, STREAMS, "do not ring", alias_of="bell",
           variables={Command.SALLOC: ("SALLOC_NO_BELL",)}),
    option("", "x11[=all|first|last]", TERMINAL, Kind.TEXT, STREAMS, "forward X11",
           ignored="X11 is not forwarded; on this machine DISPLAY just works"),
)

COMMAND_ROWS: tuple[Option, ...] = (
    option("h", "help", ALL, Kind.FLAG, COMMAND, "this text"),
    option("", "usage", ALL, Kind.FLAG, COMMAND, "a short text"),
    option("V", "version", ALL, Kind.FLAG, COMMAND, "version"),
    option("v", "verbose", ALL, Kind.FLAG, COMMAND, "say more; several times for more",
           variables={Command.SBATCH: ("SBATCH_DEBUG",), Command.SRUN: ("SLURM_DEBUG",),
                      Command.SALLOC: ("SALLOC_DEBUG",)}),
    option("Q", "quiet", ALL, Kind.FLAG, COMMAND, "say only what went wrong"),
    option("", "autocomplete=TEXT", ALL, Kind.TEXT, COMMAND, "for shells that complete options",
           ignored="shells complete from the generated help"),
)

# fmt: on
LAUNCH_ROWS: tuple[Option, ...] = (*_STEP_ROWS, *_BINDING_ROWS, *_STREAM_ROWS)
