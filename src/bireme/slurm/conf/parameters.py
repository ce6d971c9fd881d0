"""The words inside keys such as SchedulerParameters: which there are, and what Bireme does with each.

`stands` says it of keys, this module of the words in their values. Facts and one walk over them, called by `loading`.
A word that Slurm has never had is no way to say what was meant: where Slurm refuses the file for it (PrologFlags,
SelectTypeParameters, TaskPlugin) so do we, elsewhere Slurm drops it in silence and we name it, with the nearest word.
Invariant: a word is in one table of its key only, and everything that is asked for and is not applied is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bireme.slurm.conf.diagnostics import Findings, Place, nearest
from bireme.slurm.conf.scheduling import SCHEDULER_WORDS


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


@dataclass(frozen=True, slots=True)
class Words:
    """What may stand in one key's value; all in small letters."""

    applied: frozenset[str]
    """In force when they are there, or so in any case."""
    of_slurms_daemons: frozenset[str] = frozenset()
    """How Slurm's daemons pace, connect and store: without a meaning here, and jobs see no difference."""
    not_applied: Mapping[str, str] = field(default_factory=dict)
    """With the reason, which is said."""
    refused: bool = False
    """Slurm does not start with a word that it does not know."""

    def __post_init__(self) -> None:
        tables = (self.applied, self.of_slurms_daemons, frozenset(self.not_applied))
        assert len(self.known) == sum(map(len, tables)), "a word in two tables"

    @property
    def known(self) -> frozenset[str]:
        return self.applied | self.of_slurms_daemons | frozenset(self.not_applied)


_POWER = "Bireme does not power nodes up or down"
_OWN_WAY = "steps are started in Bireme's own way"

WORDS: Mapping[str, Words] = {
    "SchedulerParameters": Words(
        applied=SCHEDULER_WORDS
        | _words(
            "bf_continue bf_hetjob_immediate bf_hetjob_prio bf_running_job_reserve disable_job_shrink "
            "enable_hetjob_steps enable_user_top nohold_on_prolog_fail preempt_reorder_count preempt_strict_order "
            "preempt_youngest_first salloc_wait_nodes sbatch_wait_nodes whole_hetjob whole_pack"
        ),
        of_slurms_daemons=_words(
            "batch_sched_delay bb_array_stage_cnt bf_max_time bf_node_space_size bf_topopt_enable "
            "bf_topopt_iterations bf_window_linear bf_yield_interval bf_yield_rpc_cnt bf_yield_sleep "
            "build_queue_timeout correspond_after_task_cnt default_queue_depth defer defer_batch ignore_numa "
            "max_rpc_cnt max_sched_time no_backup_scheduling no_env_cache partition_job_depth sched_interval "
            "sched_min_interval step_retry_count step_retry_time"
        ),
        not_applied={
            "bf_allow_magnetic_slot": "no slot is held in a magnetic reservation",
            "bf_busy_nodes": "nodes are chosen as placement=NAME says",
            "bf_licenses": "a job that waits for licences has no slot",
            "bf_max_job_array_resv": "an array holds one slot at a time, that of its next task",
            "delay_boot": _POWER,
            "disable_hetjob_steps": "steps may span the components of a heterogeneous job",
            "extra_constraints": "--extra is kept with the job, and chooses no node",
            "ignore_constraint_validation": "a constraint that no node meets is refused",
            "ignore_prefer_validation": "a preference that no node meets is refused",
            "max_script_size": "scripts have Bireme's own limit of size",
            "max_submit_line_size": "texts have Bireme's own limits of length",
            "pack_serial_at_end": "nodes are chosen as placement=NAME says",
            "reduce_completing_frag": "nodes are given out as soon as they are free",
            "requeue_delay": "how long a requeued job waits is Bireme's own choice",
            "requeue_on_resume_failure": _POWER,
            "requeue_setup_env_fail": "a job whose environment cannot be had fails",
            "spec_cores_first": "no CPUs are set aside for the system",
            "time_min_as_soft_limit": "jobs end at their time limit",
        },
    ),
    "SlurmctldParameters": Words(
        applied=_words("enable_expedited_requeue"),
        of_slurms_daemons=_words(
            "cloud_dns cloud_reg_addrs conmgr_connect_timeout conmgr_max_connections conmgr_quiesce_timeout "
            "conmgr_read_timeout conmgr_threads conmgr_use_poll conmgr_wait_write_delay conmgr_write_timeout "
            "disable_triggers enable_async_reply enable_configless enable_stepmgr max_dbd_msg_action no_quick_restart "
            "node_reg_mem_percent reconfig_on_restart rl_bucket_size rl_enable rl_log_freq rl_refill_period "
            "rl_refill_rate rl_table_size validate_nodeaddr_threads"
        ),
        not_applied={
            "allow_user_triggers": "there is no strigger",
            "idle_on_node_suspend": _POWER,
            "max_powered_nodes": _POWER,
            "power_save_interval": _POWER,
            "power_save_min_interval": _POWER,
            "preempt_send_user_signal": "--signal is sent before the time limit alone",
            "reboot_from_controller": "nodes are not rebooted",
            "user_resv_delete": "only operators may delete reservations",
        },
    ),
    "LaunchParameters": Words(
        applied=frozenset(),
        of_slurms_daemons=_words("lustre_no_flush mpir_use_nodeaddr slurmstepd_memlock slurmstepd_memlock_all"),
        not_applied={
            "batch_step_set_cpu_freq": "CPU frequencies are left alone",
            "cray_net_exclusive": _OWN_WAY,
            "disable_send_gids": "jobs have the groups of their submitter",
            "enable_nss_slurm": "users are looked up as the node's own system does it",
            "interactive_step_set_cpu_freq": "CPU frequencies are left alone",
            "mem_sort": _OWN_WAY,
            "srun_exclusive_allocation": "an srun outside of a job gets what it asks for",
            "test_exec": "a program that is missing is said by its tasks",
            "ulimit_pam_adopt": "no PAM session is opened for jobs",
            "use_interactive_step": "salloc starts a shell where it was typed",
        },
    ),
    "DependencyParameters": Words(
        applied=_words("kill_invalid_depend"),
        of_slurms_daemons=_words("disable_remote_singleton"),
        not_applied={"max_depend_depth": "a circle of dependencies is found however long it is"},
    ),
    "JobAcctGatherParams": Words(
        applied=_words("overmemorykill"),
        of_slurms_daemons=_words("disablegpuacct no_file_cache"),
        not_applied={
            "noshared": "memory that processes share counts for each of them",
            "usepss": "memory that processes share counts for each of them",
        },
    ),
    "PreemptParameters": Words(
        applied=_words("reorder_count strict_order youngest_first"),
        not_applied={
            "min_exempt_priority": "priority exempts no job",
            "reclaim_licenses": "jobs are preempted for room, not for licences",
            "send_user_signal": "--signal is sent before the time limit alone",
            "suspend_grace_time": "a job that is suspended stops at once",
        },
    ),
    "PrivateData": Words(
        applied=_words("accounts events jobs nodes none partitions reservations usage users"),
        of_slurms_daemons=_words("cloud"),
    ),
    "PrologFlags": Words(
        applied=_words("alloc contain deferbatch none"),
        not_applied={
            "forcerequeueonfail": "only batch jobs that may be requeued are, when their prolog fails",
            "nohold": "salloc waits for the prolog",
            "runinjob": "the prolog runs before the job's own processes",
            "serial": "the prologs of several jobs may run at once",
            "x11": "X11 is not forwarded",
        },
        refused=True,
    ),
    "SelectTypeParameters": Words(
        applied=_words("cr_core cr_core_memory cr_cpu cr_cpu_memory cr_memory none"),
        of_slurms_daemons=_words("other_cons_res other_cons_tres"),
        not_applied={
            "cr_core_default_dist_block": "a job's cores are taken as placement=NAME says",
            "cr_lln": "nodes are chosen as placement=NAME says",
            "cr_no_dist_topo_block": "the topology is used as it is written",
            "cr_one_task_per_core": "ask with --ntasks-per-core=1 or --hint=nomultithread",
            "cr_pack_nodes": "tasks are laid out as --distribution says",
            "cr_socket": "cores are given out, not whole sockets",
            "cr_socket_memory": "cores are given out, not whole sockets",
            "enforce_binding_gres": "ask with --gres-flags=enforce-binding",
            "ll_shared_gres": "parts of GPUs are chosen in Bireme's own way",
            "multiple_sharing_gres_pj": "parts of GPUs are chosen in Bireme's own way",
            "one_task_per_sharing_gres": "ask with --gres-flags=one-task-per-sharing",
        },
        refused=True,
    ),
    "TaskPlugin": Words(
        applied=_words("affinity cgroup none task/affinity task/cgroup task/none"),
        refused=True,
    ),
}
"""By key. Of other keys with such lists (`PriorityFlags`, `AccountingStorageEnforce`) each word is applied, and read
where it is typed; of the rest (`TaskPluginParam`, ...) none is, which `stands` says of the key."""


def check_words(values: Mapping[str, str], places: Mapping[str, Place], findings: Findings) -> None:
    """Says of every word what is not applied of it, and names those that are none."""
    for key, words in WORDS.items():
        for written in _written(values.get(key, "")):
            name = written.partition("=")[0].strip().lower()
            if name in words.not_applied:
                findings.warn(places[key], f"{key}={written} is not applied: {words.not_applied[name]}")
            elif name not in words.known:
                others = [(f" of {other}", WORDS[other].known) for other in WORDS if other != key]
                say = findings.error if words.refused else findings.warn
                say(places[key], f"{key}={written} is no word of Slurm's{nearest(name, words.known, *others)}")


def _written(value: str) -> Iterable[str]:
    """Words are parted by commas; nothing is the word for none of them."""
    return [word.strip() for word in value.split(",") if word.strip() and word.strip().lower() != "(null)"]
