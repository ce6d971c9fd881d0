"""How much of everything a run does. Invariant: `quick` proves that every row can be produced, nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    launch_tasks: int = 2_000
    launch_rounds: int = 3
    cpus: int = 64
    """CPUs of the node (ours and Slurm's), or of all virtual nodes together: how many tasks run at a time."""
    virtual_nodes: int = 8
    side_tasks: int = 1_000
    side_jobs: int = 200
    side_calls: int = 100
    """Of the rows that stand beside Slurm's."""
    sbatch_calls: int = 1_000
    command_calls: int = 30
    """Of each command, in turns with the floor."""
    sdk_single: int = 1_000
    sdk_many: int = 10_000
    queued_jobs: int = 10_000
    repeats: int = 10
    crowd_jobs: int = 1_000
    crowd_many_jobs: int = 100_000
    crowd_listing: int = 200
    crowd_submitting: int = 20
    crowd_s: float = 20.0
    crowd_calls: int = 1_000
    crowd_rounds: int = 3
    restart_jobs: int = 100_000
    heal_rounds: int = 5
    heal_hangs: bool = True
    """Whether a hang is measured too: a minute and a half."""
    much_tasks: int = 50_000
    much_jobs: int = 20_000
    row_jobs: int = 30_000
    plan_nodes: int = 10_000
    plan_jobs: int = 100_000
    study_nodes: int = 1_213
    study_pods: int = 8_152
    sim_jobs: int = 82_247
    router_s: float = 5.0
    router_rounds: int = 3
    router_streams: int = 500
    router_wakes: int = 20
    service_wakes: int = 15
    service_requests: int = 500
    """Before and after each misfortune."""
    series_nodes: int = 125
    """Of eight GPUs each."""
    series_hours: float = 1.0
    series_job_hours: float = 24.0
    gathering_s: float = 60.0
    report_runs: int = 50_000
    service_reactions: int = 5
    service_idle: int = 100
    service_idle_s: float = 30.0
    log_mib: int = 1024
    web_nodes: int = 1_250
    """Of eight GPUs each."""
    web_pages: int = 200
    image_mib: int = 1000


FULL = Sizes()
QUICK = Sizes(
    launch_tasks=40,
    launch_rounds=1,
    cpus=8,
    virtual_nodes=2,
    side_tasks=20,
    side_jobs=8,
    side_calls=3,
    sbatch_calls=5,
    command_calls=2,
    sdk_single=20,
    sdk_many=100,
    queued_jobs=100,
    repeats=2,
    crowd_jobs=20,
    crowd_many_jobs=40,
    crowd_listing=4,
    crowd_submitting=2,
    crowd_s=1.0,
    crowd_calls=5,
    crowd_rounds=1,
    restart_jobs=200,
    heal_rounds=1,
    heal_hangs=False,
    much_tasks=200,
    much_jobs=50,
    row_jobs=20,
    plan_nodes=40,
    plan_jobs=400,
    study_nodes=40,
    study_pods=200,
    sim_jobs=200,
    router_s=1.0,
    router_rounds=1,
    router_streams=20,
    router_wakes=2,
    service_wakes=1,
    service_requests=20,
    service_reactions=1,
    service_idle=4,
    service_idle_s=1.0,
    series_nodes=2,
    series_hours=0.2,
    series_job_hours=1.0,
    log_mib=24,
    web_nodes=4,
    web_pages=6,
    image_mib=10,
    gathering_s=10.0,
    report_runs=300,
)
