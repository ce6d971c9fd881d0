"""The keys of Slurm's configuration files: all that Slurm documents up to 26.05, in its spelling.

Facts only, no parsing. `SHOWN` is in the order of `scontrol show config`. What Bireme does with each key is said in
`stands`; a key that no version of Slurm has refuses the file.
Invariant: every key of `SHOWN` that can be written in slurm.conf is in `GLOBAL_KEYS`.
"""

from __future__ import annotations

from enum import StrEnum


class Shown(StrEnum):
    """How `scontrol show config` prints a value."""

    TEXT = "text"
    NUMBER = "number"
    SECONDS = "sec"
    MINUTES = "min"
    USEC = "usec"
    PERCENT = "percent"
    NODES_PER_MINUTE = "nodes/min"
    YES_NO = "yes/no"
    ZERO_ONE = "0/1"
    UPPER = "upper"
    LOWER = "lower"
    MEMORY = "memory"
    DURATION = "duration"


NULL = "(null)"

SHOWN: tuple[tuple[str, Shown, str], ...] = (
    ("AccountingStorageBackupHost", Shown.TEXT, NULL),
    ("AccountingStorageEnforce", Shown.TEXT, "none"),
    ("AccountingStorageHost", Shown.TEXT, "localhost"),
    ("AccountingStorageExternalHost", Shown.TEXT, NULL),
    ("AccountingStorageParameters", Shown.TEXT, NULL),
    ("AccountingStoragePort", Shown.TEXT, "0"),
    ("AccountingStorageTRES", Shown.TEXT, "cpu,mem,energy,node,billing,fs/disk,vmem,pages"),
    ("AccountingStorageType", Shown.TEXT, "accounting_storage/slurmdbd"),
    ("AccountingStorageUser", Shown.TEXT, "N/A"),
    ("AccountingStoreFlags", Shown.TEXT, NULL),
    ("AcctGatherEnergyType", Shown.TEXT, "acct_gather_energy/none"),
    ("AcctGatherFilesystemType", Shown.TEXT, "acct_gather_filesystem/none"),
    ("AcctGatherInterconnectType", Shown.TEXT, "acct_gather_interconnect/none"),
    ("AcctGatherNodeFreq", Shown.SECONDS, "0"),
    ("AcctGatherProfileType", Shown.TEXT, "acct_gather_profile/none"),
    ("AllowSpecResourcesUsage", Shown.YES_NO, "No"),
    ("AuthAltTypes", Shown.TEXT, NULL),
    ("AuthAltParameters", Shown.TEXT, NULL),
    ("AuthInfo", Shown.TEXT, NULL),
    ("AuthType", Shown.TEXT, "auth/munge"),
    ("BatchStartTimeout", Shown.SECONDS, "10"),
    ("BcastExclude", Shown.TEXT, "/lib,/usr/lib,/lib64,/usr/lib64"),
    ("BcastParameters", Shown.TEXT, NULL),
    ("BurstBufferType", Shown.TEXT, NULL),
    ("CliFilterPlugins", Shown.TEXT, NULL),
    ("ClusterName", Shown.TEXT, NULL),
    ("CommunicationParameters", Shown.TEXT, NULL),
    ("CompleteWait", Shown.SECONDS, "0"),
    ("CoreSpecPlugin", Shown.TEXT, "core_spec/none"),
    ("CpuFreqDef", Shown.TEXT, "Unknown"),
    ("CpuFreqGovernors", Shown.TEXT, "OnDemand,Performance,UserSpace"),
    ("CredType", Shown.TEXT, "cred/munge"),
    ("DebugFlags", Shown.TEXT, NULL),
    ("DefMemPerNode", Shown.MEMORY, "UNLIMITED"),
    ("DependencyParameters", Shown.TEXT, NULL),
    ("DisableRootJobs", Shown.YES_NO, "No"),
    ("EioTimeout", Shown.TEXT, "60"),
    ("EnforcePartLimits", Shown.UPPER, "NO"),
    ("Epilog", Shown.TEXT, NULL),
    ("EpilogMsgTime", Shown.USEC, "2000"),
    ("EpilogSlurmctld", Shown.TEXT, NULL),
    ("ExtSensorsType", Shown.TEXT, "ext_sensors/none"),
    ("ExtSensorsFreq", Shown.SECONDS, "0"),
    ("FederationParameters", Shown.TEXT, NULL),
    ("FirstJobId", Shown.TEXT, "1"),
    ("GetEnvTimeout", Shown.SECONDS, "2"),
    ("GresTypes", Shown.TEXT, NULL),
    ("GpuFreqDef", Shown.TEXT, "high,memory=high"),
    ("GroupUpdateForce", Shown.ZERO_ONE, "1"),
    ("GroupUpdateTime", Shown.SECONDS, "600"),
    ("HealthCheckInterval", Shown.SECONDS, "0"),
    ("HealthCheckNodeState", Shown.UPPER, "ANY"),
    ("HealthCheckProgram", Shown.TEXT, NULL),
    ("InactiveLimit", Shown.SECONDS, "0"),
    ("InteractiveStepOptions", Shown.TEXT, "--interactive --preserve-env --pty $SHELL"),
    ("JobAcctGatherFrequency", Shown.TEXT, "30"),
    ("JobAcctGatherType", Shown.TEXT, "jobacct_gather/none"),
    ("JobAcctGatherParams", Shown.TEXT, NULL),
    ("JobCompHost", Shown.TEXT, "localhost"),
    ("JobCompLoc", Shown.TEXT, "/var/log/slurm_jobcomp.log"),
    ("JobCompPort", Shown.TEXT, "0"),
    ("JobCompType", Shown.TEXT, "jobcomp/none"),
    ("JobCompUser", Shown.TEXT, "root"),
    ("JobContainerType", Shown.TEXT, "job_container/none"),
    ("JobCredentialPrivateKey", Shown.TEXT, NULL),
    ("JobCredentialPublicCertificate", Shown.TEXT, NULL),
    ("JobFileAppend", Shown.ZERO_ONE, "0"),
    ("JobRequeue", Shown.ZERO_ONE, "1"),
    ("JobSubmitPlugins", Shown.TEXT, NULL),
    ("KillOnBadExit", Shown.ZERO_ONE, "0"),
    ("KillWait", Shown.SECONDS, "30"),
    ("LaunchParameters", Shown.TEXT, NULL),
    ("LaunchType", Shown.TEXT, "launch/slurm"),
    ("Licenses", Shown.TEXT, NULL),
    ("LogTimeFormat", Shown.TEXT, "iso8601_ms"),
    ("MailDomain", Shown.TEXT, NULL),
    ("MailProg", Shown.TEXT, "/usr/bin/mail"),
    ("MaxArraySize", Shown.TEXT, "1001"),
    ("MaxDBDMsgs", Shown.TEXT, "0"),
    ("MaxJobCount", Shown.TEXT, "10000"),
    ("MaxJobId", Shown.TEXT, "67043328"),
    ("MaxMemPerNode", Shown.MEMORY, "UNLIMITED"),
    ("MaxStepCount", Shown.TEXT, "40000"),
    ("MaxTasksPerNode", Shown.TEXT, "512"),
    ("MCSPlugin", Shown.TEXT, "mcs/none"),
    ("MCSParameters", Shown.TEXT, NULL),
    ("MessageTimeout", Shown.SECONDS, "10"),
    ("MinJobAge", Shown.SECONDS, "300"),
    ("MpiDefault", Shown.TEXT, "none"),
    ("MpiParams", Shown.TEXT, NULL),
    ("NodeFeaturesPlugins", Shown.TEXT, NULL),
    ("OverTimeLimit", Shown.MINUTES, "0"),
    ("PluginDir", Shown.TEXT, "/usr/lib/slurm"),
    ("PlugStackConfig", Shown.TEXT, NULL),
    ("PowerParameters", Shown.TEXT, NULL),
    ("PowerPlugin", Shown.TEXT, ""),
    ("PreemptMode", Shown.UPPER, "OFF"),
    ("PreemptType", Shown.TEXT, "preempt/none"),
    ("PreemptExemptTime", Shown.DURATION, "00:00:00"),
    ("PrEpParameters", Shown.TEXT, NULL),
    ("PrEpPlugins", Shown.TEXT, "prep/script"),
    ("PriorityParameters", Shown.TEXT, NULL),
    ("PrioritySiteFactorParameters", Shown.TEXT, NULL),
    ("PrioritySiteFactorPlugin", Shown.TEXT, NULL),
    ("PriorityType", Shown.TEXT, "priority/basic"),
    ("PrivateData", Shown.LOWER, "none"),
    ("ProctrackType", Shown.TEXT, "proctrack/cgroup"),
    ("Prolog", Shown.TEXT, NULL),
    ("PrologEpilogTimeout", Shown.NUMBER, "65534"),
    ("PrologSlurmctld", Shown.TEXT, NULL),
    ("PrologFlags", Shown.TEXT, NULL),
    ("PropagatePrioProcess", Shown.ZERO_ONE, "0"),
    ("PropagateResourceLimits", Shown.TEXT, "ALL"),
    ("PropagateResourceLimitsExcept", Shown.TEXT, NULL),
    ("RebootProgram", Shown.TEXT, NULL),
    ("ReconfigFlags", Shown.TEXT, NULL),
    ("RequeueExit", Shown.TEXT, NULL),
    ("RequeueExitHold", Shown.TEXT, NULL),
    ("ResumeFailProgram", Shown.TEXT, NULL),
    ("ResumeProgram", Shown.TEXT, NULL),
    ("ResumeRate", Shown.NODES_PER_MINUTE, "300"),
    ("ResumeTimeout", Shown.SECONDS, "60"),
    ("ResvEpilog", Shown.TEXT, NULL),
    ("ResvOverRun", Shown.MINUTES, "0"),
    ("ResvProlog", Shown.TEXT, NULL),
    ("ReturnToService", Shown.TEXT, "0"),
    ("RoutePlugin", Shown.TEXT, "route/default"),
    ("SchedulerParameters", Shown.TEXT, NULL),
    ("SchedulerTimeSlice", Shown.SECONDS, "30"),
    ("SchedulerType", Shown.TEXT, "sched/backfill"),
    ("ScronParameters", Shown.TEXT, NULL),
    ("SelectType", Shown.TEXT, "select/cons_tres"),
    ("SelectTypeParameters", Shown.UPPER, "CR_CORE_MEMORY"),
    ("SlurmUser", Shown.TEXT, "root(0)"),
    ("SlurmctldAddr", Shown.TEXT, NULL),
    ("SlurmctldDebug", Shown.LOWER, "info"),
    ("SlurmctldHost", Shown.TEXT, NULL),
    ("SlurmctldLogFile", Shown.TEXT, NULL),
    ("SlurmctldPort", Shown.TEXT, "6817"),
    ("SlurmctldSyslogDebug", Shown.TEXT, NULL),
    ("SlurmctldPrimaryOffProg", Shown.TEXT, NULL),
    ("SlurmctldPrimaryOnProg", Shown.TEXT, NULL),
    ("SlurmctldTimeout", Shown.SECONDS, "120"),
    ("SlurmctldParameters", Shown.TEXT, NULL),
    ("SlurmdDebug", Shown.LOWER, "info"),
    ("SlurmdLogFile", Shown.TEXT, NULL),
    ("SlurmdParameters", Shown.TEXT, NULL),
    ("SlurmdPidFile", Shown.TEXT, "/var/run/slurmd.pid"),
    ("SlurmdPort", Shown.TEXT, "6818"),
    ("SlurmdSpoolDir", Shown.TEXT, "/var/spool/slurmd"),
    ("SlurmdSyslogDebug", Shown.TEXT, NULL),
    ("SlurmdTimeout", Shown.SECONDS, "300"),
    ("SlurmdUser", Shown.TEXT, "root(0)"),
    ("SlurmSchedLogFile", Shown.TEXT, NULL),
    ("SlurmSchedLogLevel", Shown.TEXT, "0"),
    ("SlurmctldPidFile", Shown.TEXT, "/var/run/slurmctld.pid"),
    ("SlurmctldPlugstack", Shown.TEXT, NULL),
    ("SrunEpilog", Shown.TEXT, NULL),
    ("SrunPortRange", Shown.TEXT, "0-0"),
    ("SrunProlog", Shown.TEXT, NULL),
    ("StateSaveLocation", Shown.TEXT, "/var/spool"),
    ("SuspendExcNodes", Shown.TEXT, NULL),
    ("SuspendExcParts", Shown.TEXT, NULL),
    ("SuspendProgram", Shown.TEXT, NULL),
    ("SuspendRate", Shown.NODES_PER_MINUTE, "60"),
    ("SuspendTime", Shown.SECONDS, "INFINITE"),
    ("SuspendTimeout", Shown.SECONDS, "30"),
    ("SwitchParameters", Shown.TEXT, NULL),
    ("SwitchType", Shown.TEXT, "switch/none"),
    ("TaskEpilog", Shown.TEXT, NULL),
    ("TaskPlugin", Shown.TEXT, "task/none"),
    ("TaskPluginParam", Shown.LOWER, "(null type)"),
    ("TaskProlog", Shown.TEXT, NULL),
    ("TCPTimeout", Shown.SECONDS, "2"),
    ("TmpFS", Shown.TEXT, "/tmp"),
    ("TopologyParam", Shown.TEXT, NULL),
    ("TopologyPlugin", Shown.TEXT, "topology/none"),
    ("TrackWCKey", Shown.YES_NO, "No"),
    ("TreeWidth", Shown.TEXT, "50"),
    ("UsePAM", Shown.YES_NO, "No"),
    ("UnkillableStepProgram", Shown.TEXT, NULL),
    ("UnkillableStepTimeout", Shown.SECONDS, "60"),
    ("VSizeFactor", Shown.PERCENT, "0"),
    ("WaitTime", Shown.SECONDS, "0"),
    ("X11Parameters", Shown.TEXT, NULL),
)

SHOWN_FOR_MULTIFACTOR: tuple[tuple[str, Shown, str], ...] = (
    ("PriorityDecayHalfLife", Shown.DURATION, "7-00:00:00"),
    ("PriorityCalcPeriod", Shown.DURATION, "00:05:00"),
    ("PriorityFavorSmall", Shown.YES_NO, "No"),
    ("PriorityFlags", Shown.UPPER, ""),
    ("PriorityMaxAge", Shown.DURATION, "7-00:00:00"),
    ("PriorityUsageResetPeriod", Shown.UPPER, "NONE"),
    ("PriorityType", Shown.TEXT, "priority/multifactor"),
    ("PriorityWeightAge", Shown.NUMBER, "0"),
    ("PriorityWeightAssoc", Shown.NUMBER, "0"),
    ("PriorityWeightFairShare", Shown.NUMBER, "0"),
    ("PriorityWeightJobSize", Shown.NUMBER, "0"),
    ("PriorityWeightPartition", Shown.NUMBER, "0"),
    ("PriorityWeightQOS", Shown.NUMBER, "0"),
    ("PriorityWeightTRES", Shown.TEXT, NULL),
)
"""Take the place of the plain PriorityType line under priority/multifactor."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DOCUMENTED_BUT_NOT_SHOWN = _words(
    "AccountingStoragePass AccountingStorageLoc AcctGatherInfinibandType BackupAddr BackupController ControlAddr "
    "ControlMachine DefCpuPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode FairShareDampeningFactor JobCompParams "
    "JobCompPass MaxMemPerCPU MaxNodeCount JobDefaults SlurmctldHost"
)
_NEWER_THAN_22_05 = _words(
    "CertgenParameters CertgenType CertmgrParameters CertmgrType CliFilterParameters DataParserParameters "
    "EpilogTimeout HashPlugin HealthCheckTimeout HttpParserType JobCompPassScript LicenseParameters MaxBatchRequeue "
    "MetricsAuthUsers MetricsParameters MetricsType NamespaceType PreemptParameters PrologTimeout SbcastParameters "
    "SlurmctldHttpAuthParameters SlurmdHttpAuthParameters SuspendExcStates TLSParameters TLSType UrlParserType"
)
_OLDER_THAN_22_05 = _words(
    "AccountingStoreJobComment CacheGroups CheckpointType CryptoType DefaultStorageHost DefaultStorageLoc "
    "DefaultStoragePass DefaultStoragePort DefaultStorageType DefaultStorageUser FastSchedule JobCheckpointDir "
    "KeepAliveTime LayoutsPlugins MemLimitEnforce MsgAggregationParams SallocDefaultCommand SchedulerPort "
    "SchedulerRootFilter"
)
_PRIORITY_KEYS = frozenset(key for key, _, _ in SHOWN_FOR_MULTIFACTOR)

GLOBAL_KEYS = (
    frozenset(key for key, _, _ in SHOWN)
    | _PRIORITY_KEYS
    | _DOCUMENTED_BUT_NOT_SHOWN
    | _NEWER_THAN_22_05
    | _OLDER_THAN_22_05
)
REPEATABLE_KEYS = frozenset({"SlurmctldHost"})
"""Keys that may stand on several lines; their values are joined by commas."""

NODE_KEYS = _words(
    "NodeName NodeHostname NodeAddr BcastAddr Boards CoreSpecCount CoresPerSocket CpuBind CPUs CpuSpecList Feature "
    "Features Gres MemSpecLimit Parameters Port Procs RealMemory Reason RestrictedCoresPerGPU Sockets "
    "SocketsPerBoard State ThreadsPerCore TmpDisk Topology Weight"
)
DOWN_NODES_KEYS = _words("DownNodes Reason State")
NODE_SET_KEYS = _words("NodeSet Feature Nodes")
FRONTEND_KEYS = _words("FrontendName FrontendAddr AllowGroups AllowUsers DenyGroups DenyUsers Port Reason State")
POWER_ACTION_KEYS = _words("PowerAction Location Program")
PARTITION_KEYS = _words(
    "PartitionName AllocNodes AllowAccounts AllowGroups AllowQos Alternate CpuBind Default DefaultTime DefCpuPerGPU "
    "DefMemPerCPU DefMemPerGPU DefMemPerNode DenyAccounts DenyQos DisableRootJobs Exclusive ExclusiveTopo "
    "ExclusiveUser GraceTime Hidden JobDefaults LLN MaxCPUsPerNode MaxCPUsPerSocket MaxCPUsPerUser MaxMemPerCPU "
    "MaxMemPerNode MaxNodes MaxTime MinNodes Nodes OverSubscribe OverTimeLimit PowerDownOnIdle PreemptMode Priority "
    "PriorityJobFactor PriorityTier QOS ReqResv ResumeTimeout RootOnly SelectTypeParameters Shared State SuspendTime "
    "SuspendTimeout Topology TRESBillingWeights"
)
GRES_KEYS = _words("AutoDetect Name NodeName Type Count Cores CPUs File Flags Link Links MultipleFiles Ignore")
SWITCH_KEYS = _words("SwitchName Switches Nodes LinkSpeed")
BLOCK_KEYS = _words("BlockName Nodes BlockSizes")
RING_KEYS = _words("RingName Nodes")
CGROUP_KEYS = _words(
    "AllowedDevicesFile AllowedKmemSpace AllowedRAMSpace AllowedSwapSpace CgroupAutomount CgroupJobIdPaths "
    "CgroupMountpoint CgroupPlugin CgroupReleaseAgentDir CgroupSlice ConstrainCores ConstrainDevices "
    "ConstrainKmemSpace ConstrainRAMSpace ConstrainSwapSpace EnableControllers EnableExtraControllers IgnoreSystemd "
    "IgnoreSystemdOnFailure MaxKmemPercent MaxRAMPercent MaxSwapPercent MemoryLimitEnforcement MemoryLimitThreshold "
    "MemorySwappiness MinKmemSpace MinRAMSpace SignalChildrenProcesses SystemdTimeout TaskAffinity"
)
