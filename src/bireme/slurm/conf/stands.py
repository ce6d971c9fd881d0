"""What Bireme does with each key of Slurm's configuration files: applies it, needs it not, or says that it does not.

Facts only; the keys themselves are in `keys`. Used by `loading`, which warns of what was asked for and is not applied.
Invariant: every key of `keys` is in exactly one of the tables of its file (a test walks them), so that whoever adds a
key takes a stand on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bireme.slurm.conf.diagnostics import Findings, Place
from bireme.slurm.conf.keys import SHOWN
from bireme.slurm.conf.lines import Line
from bireme.slurm.conf.parameters import WORDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


APPLIED = _words(
    "AccountingStorageEnforce BatchStartTimeout ClusterName DefCpuPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode "
    "DependencyParameters EnforcePartLimits Epilog FairShareDampeningFactor FirstJobId GresTypes HealthCheckInterval "
    "HealthCheckNodeState HealthCheckProgram HealthCheckTimeout InactiveLimit "
    "JobAcctGatherFrequency JobAcctGatherParams JobFileAppend JobRequeue KillOnBadExit KillWait Licenses "
    "MaxArraySize MaxBatchRequeue MaxJobCount MaxJobId MaxMemPerCPU MaxMemPerNode MinJobAge OverTimeLimit "
    "PreemptExemptTime PreemptMode PreemptParameters PreemptType PriorityCalcPeriod PriorityDecayHalfLife "
    "PriorityFavorSmall PriorityFlags PriorityMaxAge "
    "PriorityParameters PrioritySiteFactorParameters PrioritySiteFactorPlugin PriorityType PriorityUsageResetPeriod "
    "PriorityWeightAge PriorityWeightAssoc PriorityWeightFairShare PriorityWeightJobSize PriorityWeightPartition "
    "PriorityWeightQOS PriorityWeightTRES PrivateData ProctrackType Prolog PrologEpilogTimeout PrologFlags "
    "RequeueExit RequeueExitHold ResvOverRun ReturnToService SchedulerParameters SchedulerType SelectType "
    "SelectTypeParameters SlurmctldParameters SlurmdTimeout TaskEpilog TaskPlugin TaskProlog TopologyPlugin "
    "UnkillableStepProgram UnkillableStepTimeout"
)
"""Read from slurm.conf, and in force; of keys that hold a list of words, those that `parameters` says."""

OF_SLURMS_DAEMONS = _words(
    "AccountingStorageBackupHost AccountingStorageExternalHost AccountingStorageHost AccountingStorageLoc "
    "AccountingStorageParameters AccountingStoragePass AccountingStoragePort AccountingStorageTRES "
    "AccountingStorageType AccountingStorageUser AccountingStoreFlags AccountingStoreJobComment AuthAltParameters "
    "AuthAltTypes AuthInfo AuthType BackupAddr BackupController BcastExclude BcastParameters CacheGroups "
    "CertgenParameters CertgenType CertmgrParameters CertmgrType CommunicationParameters ControlAddr ControlMachine "
    "CredType CryptoType DataParserParameters DebugFlags DefaultStorageHost DefaultStorageLoc DefaultStoragePass "
    "DefaultStoragePort DefaultStorageType DefaultStorageUser EioTimeout EpilogMsgTime FastSchedule "
    "FederationParameters GetEnvTimeout GroupUpdateForce GroupUpdateTime HashPlugin HttpParserType JobAcctGatherType "
    "JobCredentialPrivateKey JobCredentialPublicCertificate KeepAliveTime LaunchType LayoutsPlugins LogTimeFormat "
    "MaxDBDMsgs MessageTimeout MetricsAuthUsers MetricsParameters MetricsType MsgAggregationParams PluginDir "
    "ReconfigFlags RoutePlugin SbcastParameters SchedulerPort SchedulerRootFilter SlurmSchedLogFile "
    "SlurmSchedLogLevel SlurmUser SlurmctldAddr SlurmctldDebug SlurmctldHost SlurmctldHttpAuthParameters "
    "SlurmctldLogFile SlurmctldPidFile SlurmctldPort SlurmctldSyslogDebug SlurmctldTimeout SlurmdDebug "
    "SlurmdHttpAuthParameters SlurmdLogFile SlurmdParameters SlurmdPidFile SlurmdPort SlurmdSpoolDir "
    "SlurmdSyslogDebug SlurmdUser SrunPortRange StateSaveLocation TCPTimeout TLSParameters TLSType TreeWidth "
    "UrlParserType"
)
"""How Slurm's own daemons find, trust, log and store. Bireme has its own way, and jobs see no difference."""

_PLUGIN = "Slurm's plugins are not loaded"
_PROGRAM = "this program is never run"
_POWER = "Bireme does not power nodes up or down"
_NOT_MEASURED = "it is not measured"
_NOT_CARRIED = "tasks have the limits of the node's agent"
_NOT_LIMITED = "there is no such limit"

NOT_APPLIED: Mapping[str, str] = {
    "AcctGatherEnergyType": _NOT_MEASURED,
    "AcctGatherFilesystemType": _NOT_MEASURED,
    "AcctGatherInfinibandType": _NOT_MEASURED,
    "AcctGatherInterconnectType": _NOT_MEASURED,
    "AcctGatherNodeFreq": _NOT_MEASURED,
    "AcctGatherProfileType": _NOT_MEASURED,
    "AllowSpecResourcesUsage": "no CPUs or memory are set aside for the system",
    "BurstBufferType": _PLUGIN,
    "CheckpointType": _PLUGIN,
    "CliFilterParameters": _PLUGIN,
    "CliFilterPlugins": _PLUGIN,
    "CompleteWait": "nodes are given out as soon as they are free",
    "CoreSpecPlugin": _PLUGIN,
    "CpuFreqDef": "CPU frequencies are left alone",
    "CpuFreqGovernors": "CPU frequencies are left alone",
    "DisableRootJobs": "jobs of root are run; DisableRootJobs of a PartitionName line is applied",
    "EpilogSlurmctld": _PROGRAM,
    "EpilogTimeout": "PrologEpilogTimeout is applied to both",
    "ExtSensorsFreq": _NOT_MEASURED,
    "ExtSensorsType": _NOT_MEASURED,
    "GpuFreqDef": "GPU frequencies are left alone",
    "InteractiveStepOptions": "salloc starts a shell where it was typed",
    "JobCheckpointDir": _PLUGIN,
    "JobCompHost": _PLUGIN,
    "JobCompLoc": _PLUGIN,
    "JobCompParams": _PLUGIN,
    "JobCompPass": _PLUGIN,
    "JobCompPassScript": _PLUGIN,
    "JobCompPort": _PLUGIN,
    "JobCompType": _PLUGIN,
    "JobCompUser": _PLUGIN,
    "JobContainerType": _PLUGIN,
    "JobDefaults": "only DefCpuPerGPU and DefMemPerGPU, as keys of their own, are applied",
    "JobSubmitPlugins": _PLUGIN,
    "LaunchParameters": "steps are started in Bireme's own way",
    "LicenseParameters": "licences are counted as they are configured",
    "MCSParameters": _PLUGIN,
    "MCSPlugin": _PLUGIN,
    "MailDomain": "no mail is sent",
    "MailProg": "no mail is sent",
    "MaxNodeCount": _NOT_LIMITED,
    "MaxStepCount": _NOT_LIMITED,
    "MaxTasksPerNode": _NOT_LIMITED,
    "MemLimitEnforce": "memory is confined by cgroup.conf (ConstrainRAMSpace=yes)",
    "MpiDefault": "an srun without --mpi starts its tasks without PMI; set SLURM_MPI_TYPE",
    "MpiParams": "PMI needs no ports",
    "NamespaceType": _PLUGIN,
    "NodeFeaturesPlugins": _PLUGIN,
    "PlugStackConfig": _PLUGIN,
    "PowerParameters": _POWER,
    "PowerPlugin": _PLUGIN,
    "PrEpParameters": _PLUGIN,
    "PrEpPlugins": _PLUGIN,
    "PrologSlurmctld": _PROGRAM,
    "PrologTimeout": "PrologEpilogTimeout is applied to both",
    "PropagatePrioProcess": "the nice value of a job's submitter is told to it, and not set",
    "PropagateResourceLimits": _NOT_CARRIED,
    "PropagateResourceLimitsExcept": _NOT_CARRIED,
    "RebootProgram": _PROGRAM,
    "ResumeFailProgram": _POWER,
    "ResumeProgram": _POWER,
    "ResumeRate": _POWER,
    "ResumeTimeout": _POWER,
    "ResvEpilog": _PROGRAM,
    "ResvProlog": _PROGRAM,
    "SallocDefaultCommand": "salloc starts a shell where it was typed",
    "SchedulerTimeSlice": "jobs do not take turns on the same CPUs",
    "ScronParameters": "there is no scrontab",
    "SlurmctldPlugstack": _PLUGIN,
    "SlurmctldPrimaryOffProg": _PROGRAM,
    "SlurmctldPrimaryOnProg": _PROGRAM,
    "SrunEpilog": _PROGRAM,
    "SrunProlog": _PROGRAM,
    "SuspendExcNodes": _POWER,
    "SuspendExcParts": _POWER,
    "SuspendExcStates": _POWER,
    "SuspendProgram": _POWER,
    "SuspendRate": _POWER,
    "SuspendTime": _POWER,
    "SuspendTimeout": _POWER,
    "SwitchParameters": _PLUGIN,
    "SwitchType": _PLUGIN,
    "TaskPluginParam": "tasks are bound as --cpu-bind says",
    "TmpFS": "--tmp is held against TmpDisk of the NodeName line alone",
    "TopologyParam": "the topology is used as it is written",
    "TrackWCKey": "wckeys are kept with jobs, and not added up",
    "UsePAM": "no PAM session is opened for jobs",
    "VSizeFactor": "virtual memory is not limited",
    "WaitTime": "srun waits for its tasks as its own --wait says",
    "X11Parameters": "X11 is not forwarded",
}
"""Known, and not in force: said when it is set to something other than Slurm's default."""

NODE_OF_SLURMS_DAEMONS = _words("BcastAddr")
NODE_NOT_APPLIED: Mapping[str, str] = {
    "CoreSpecCount": "no CPUs are set aside for the system; set CPUs lower instead",
    "CpuBind": "tasks are bound as --cpu-bind says",
    "CpuSpecList": "no CPUs are set aside for the system; set CPUs lower instead",
    "MemSpecLimit": "no memory is set aside for the system; set RealMemory lower instead",
    "Parameters": "Slurm's parameters of nodes are not read",
    "RestrictedCoresPerGPU": "no cores are kept for jobs with GPUs",
    "Topology": "which switch a node is at is said by topology.conf",
}
PARTITION_NOT_APPLIED: Mapping[str, str] = {
    "AllocNodes": "jobs may be submitted from everywhere",
    "Alternate": "jobs of a partition that is down wait",
    "CpuBind": "tasks are bound as --cpu-bind says",
    "Exclusive": "use OverSubscribe=EXCLUSIVE for whole nodes",
    "ExclusiveTopo": "jobs of several users may share a block",
    "ExclusiveUser": "jobs of several users may share a node",
    "JobDefaults": "only DefCpuPerGPU and DefMemPerGPU, as keys of their own, are applied",
    "MaxCPUsPerSocket": "use MaxCPUsPerNode",
    "OverSubscribe": "no two jobs share a CPU; OverSubscribe=EXCLUSIVE is applied",
    "PowerDownOnIdle": _POWER,
    "ResumeTimeout": _POWER,
    "SelectTypeParameters": "the cluster's SelectTypeParameters holds for all partitions",
    "SuspendTime": _POWER,
    "SuspendTimeout": _POWER,
    "Topology": "all partitions have the one topology",
}
UNREAD_FILES = (
    "acct_gather.conf", "burst_buffer.conf", "cli_filter.lua", "helpers.conf", "job_container.conf", "job_submit.lua",
    "mpi.conf", "namespace.yaml", "oci.conf", "plugstack.conf", "resources.yaml", "topology.yaml",
)  # fmt: skip
"""Slurm's other files beside slurm.conf. Nothing of them is applied, and that is said where one is there."""
CGROUP_APPLIED = _words("ConstrainCores ConstrainDevices ConstrainRAMSpace")
CGROUP_OF_SLURMS_DAEMONS = _words(
    "CgroupAutomount CgroupJobIdPaths CgroupMountpoint CgroupPlugin CgroupReleaseAgentDir CgroupSlice "
    "EnableControllers EnableExtraControllers IgnoreSystemd IgnoreSystemdOnFailure SignalChildrenProcesses "
    "SystemdTimeout"
)
CGROUP_NOT_APPLIED: Mapping[str, str] = {
    "AllowedDevicesFile": "jobs may use every device that is not a GRES",
    "AllowedKmemSpace": "kernel memory counts as memory",
    "AllowedRAMSpace": "jobs are confined to what they asked for",
    "AllowedSwapSpace": "swap is not limited",
    "ConstrainKmemSpace": "kernel memory counts as memory",
    "ConstrainSwapSpace": "swap is not limited",
    "MaxKmemPercent": "kernel memory counts as memory",
    "MaxRAMPercent": "jobs are confined to what they asked for",
    "MaxSwapPercent": "swap is not limited",
    "MemoryLimitEnforcement": "ConstrainRAMSpace=yes confines memory",
    "MemoryLimitThreshold": "ConstrainRAMSpace=yes confines memory",
    "MemorySwappiness": "the kernel's own is in force",
    "MinKmemSpace": "kernel memory counts as memory",
    "MinRAMSpace": "jobs are confined to what they asked for",
    "TaskAffinity": "tasks are bound by TaskPlugin=task/affinity",
}
_DEFAULTS = {key: default.lower() for key, _, default in SHOWN}
_NOTHING = frozenset({"", "0", "no", "none", "(null)", "off", "(none)", "all"})


def warn_of_unapplied(
    values: Mapping[str, str], places: Mapping[str, Place], table: Mapping[str, str], findings: Findings
) -> None:
    """Of a file's settings: those that ask for something and are not in force (`parameters` says it word by word)."""
    for key, value in values.items():
        if key in table and key not in WORDS and asks_for_something(key, value):
            findings.warn(places[key], f"{key}={value} is not applied: {table[key]}")


def warn_of_unapplied_on(lines: Iterable[Line], table: Mapping[str, str], findings: Findings) -> None:
    """Warns of keys in NodeName and PartitionName lines that ask for something and are not in force."""
    spelling = {key.lower(): key for key in table}
    for line in lines:
        for written, value in line.pairs:
            key = spelling.get(written.lower())
            if key is not None and asks_for_something(key, value):
                findings.warn(line.place, f"{key}={value} is not applied: {table[key]}")


def warn_of_unapplied_lines(lines: Iterable[Line], findings: Findings) -> None:
    """FrontendName and PowerAction lines, none of whose keys is applied."""
    for line in lines:
        key, value = line.pairs[0]
        findings.warn(line.place, f"{key}={value} is not applied: there are no frontends, and nodes are not powered")


def asks_for_something(key: str, value: str) -> bool:
    """Whether a value differs from what is so anyway: Slurm's default, or a word for nothing."""
    word = value.strip().lower()
    if key == "OverSubscribe":
        return word.startswith(("yes", "force")) and not word.endswith(":1")
    return word not in _NOTHING and word != _DEFAULTS.get(key) and not word.endswith("/none")
