"""The clusters of the oracle, each started once as a real Slurm and once as Bireme, from the same texts."""

from __future__ import annotations

from dataclasses import replace

from tests.oracle.normal import FIRST_JOB_ID
from tests.slurm_cluster import Layout

# A pass over the queue every second: cases wait for decisions, and Slurm's own pace is half a minute.
_QUICK = {"SchedulerParameters": "bf_interval=1,sched_interval=2,bf_continue,batch_sched_delay=0"}

BASE = Layout().having(
    **_QUICK,
    ClusterName="oracle",
    PriorityType="priority/basic",  # the default of 22.05; that of newer releases is multifactor
    FirstJobId=FIRST_JOB_ID,
    RequeueExit=99,
    RequeueExitHold=98,
    JobAcctGatherType="jobacct_gather/linux",
    JobAcctGatherFrequency=0,
)

TREE = BASE.with_topology(
    "tree",
    """\
SwitchName=leaf1 Nodes=n[1-3]
SwitchName=leaf2 Nodes=n[4-6]
SwitchName=leaf3 Nodes=c[1-2]
SwitchName=spine Switches=leaf[1-3]
""",
)

QUEUE = TREE.having(
    PriorityType="priority/multifactor",
    PriorityWeightAge=1000,
    PriorityWeightPartition=1000,
    PriorityWeightQOS=2000,
    PriorityCalcPeriod=1,
    AccountingStorageEnforce="associations,limits,qos",
    Licenses="matlab:4,fluent:2",
)

TYPED = replace(
    BASE,
    nodes="""\
NodeName=n[1-4] CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=32000 \
Gres=gpu:a100:4 Feature=gpu,a100,ib Weight=10
NodeName=n[5-6] CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=32000 \
Gres=gpu:h100:2,gpu:a100:2 Feature=gpu,h100 Weight=20
NodeName=c[1-2] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 Feature=cpu \
Weight=1
PartitionName=main Nodes=n[1-6],c[1-2] Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00
PartitionName=urgent Nodes=n[1-6],c[1-2] MaxTime=1:00:00 PriorityTier=10
PartitionName=small Nodes=c[1-2] MaxTime=1:00:00 MaxNodes=1
""",
)

PREEMPT = replace(
    BASE.having(PreemptType="preempt/partition_prio", PreemptMode="REQUEUE"),
    nodes="""\
NodeName=n[1-4] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:a100:4
PartitionName=low Nodes=n[1-4] Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 PriorityTier=1
PartitionName=high Nodes=n[1-4] MaxTime=1-00:00:00 DefaultTime=01:00:00 PriorityTier=10
PartitionName=kill Nodes=n[1-4] MaxTime=1-00:00:00 DefaultTime=01:00:00 PriorityTier=1 PreemptMode=CANCEL
""",
)

BLOCK = replace(
    BASE.with_topology("block", "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4\n"),
    nodes="""\
NodeName=n[1-8] CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=16000 Gres=gpu:a100:4
PartitionName=main Nodes=n[1-8] Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00
""",
)

TASK_SCRIPTS = replace(
    BASE.having(TaskProlog="{folder}/task_prolog.sh", TaskEpilog="{folder}/task_epilog.sh"),
    scripts=(
        (
            "task_prolog.sh",
            """\
#!/bin/bash
echo "export GIVEN=by the prolog of ${SLURM_STEP_ID:-?} ${SLURM_PROCID:-?} $SLURM_SCRIPT_CONTEXT"
echo "unset TO_GO"
echo "print hello from the prolog"
echo "said and not meant"
echo "heard on stderr" >&2
[ "$PROLOG_FAILS" != yes ] || exit 7
""",
        ),
        (
            "task_epilog.sh",
            """\
#!/bin/bash
echo "epilog on stdout"
echo "epilog on stderr: $GIVEN, $SLURM_SCRIPT_CONTEXT" >&2
[ -z "$TELLS" ] || echo "epilog in $PWD as $(id -un), ${TO_GO:-gone}, $GIVEN" > "$TELLS"
[ "$EPILOG_FAILS" != yes ] || exit 8
""",
        ),
    ),
)

LAYOUTS = {
    "scripts": TASK_SCRIPTS,
    "block": BLOCK,
    "base": BASE,
    "tree": TREE,
    "queue": QUEUE,
    "typed": TYPED,
    "preempt": PREEMPT,
}
