"""What is written into an order to an agent: users, files, environments, tasks.

Called by the engine, which knows where orders go but not what they say. Values in, messages out: apart from reading
blobs and the clock nothing here touches the world. The meaning of variables and filename patterns is Slurm's
(`slurm/variables`, `slurm/filenames`); the meaning of the fields is the agent's (`agent/jobs`, `agent/steps`).

Invariant: everything an agent needs for a job or step is in its message. Agents ask nobody.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec.structs import asdict, replace

from bireme.agent.messages.orders import Batch, Prepare, Share, Start, StartStep, StepTask, Window, World
from bireme.agent.node import JOB_MARKER
from bireme.core.model.cluster import ClusterConfig, NodeConfig
from bireme.core.model.jobs import Job, JobSpec, Running, Starting
from bireme.core.model.resources import Allocation, NodeShare
from bireme.core.model.steps import Step, StepNode
from bireme.engines.crew.boxes import DEFAULTS, ContainerDefaults, box_of
from bireme.engines.crew.multi_prog import programs
from bireme.ports import Blobs, Further
from bireme.slurm.filenames import FilenameValues, expand_filename
from bireme.slurm.options.step import COLUMNS_VARIABLE, ROWS_VARIABLE
from bireme.slurm.records.paths import stream_paths
from bireme.slurm.variables.allocation import Component, batch_variables, merged_environment, replica_variables
from bireme.slurm.variables.cluster import ClusterFacts, cluster_facts
from bireme.slurm.variables.experiments import with_experiment
from bireme.slurm.variables.prologs import JobFiles, prolog_variables
from bireme.slurm.variables.steps import (
    Launch,
    fallback_variables,
    merged_step_environment,
    step_variables,
    task_variables,
)

_PROLOG_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOWHERE = "/dev/null"


class PayloadWriter:
    def __init__(
        self,
        home: Path,
        config: ClusterConfig,
        blobs: Blobs,
        facts: ClusterFacts | None = None,
        confined_devices: frozenset[str] = frozenset(),
        containers: ContainerDefaults | None = DEFAULTS,
    ) -> None:
        """`confined_devices`: nodes that show a job only its own devices. `containers`: how those of jobs are that do
        not say; None: of an engine whose pods are the containers."""
        self.containers = containers
        self._home = str(home)
        self._blobs = blobs
        self.reconfigure(config, facts)
        self.confined_devices = confined_devices
        self.further: Further = lambda job, allocation: {}
        """What jobs are told beside Slurm's variables, where their own environment does not say it."""
        self._environment = lru_cache(maxsize=256)(self._read_environment)
        self._script = lru_cache(maxsize=256)(self._read_script)

    def reconfigure(self, config: ClusterConfig, facts: ClusterFacts | None) -> None:
        self._config = config
        self._nodes = {node.name: node for node in config.nodes}
        self._facts = facts or cluster_facts(config)

    # --- jobs ----------------------------------------------------------------------------------------------

    def prepare(self, job: Job, allocation: Allocation, share: NodeShare) -> Prepare:
        """What every node of a job is told."""
        settings, owner = self._config.settings, job.spec.owner
        order = Prepare(
            job=job.id,
            gen=allocation.generation,
            label=job.label,
            uid=owner.uid,
            gid=owner.gid,
            groups=owner.groups,
            begun_at=_begun_at(job),
            share=Share(share.cpus, share.memory_mib, share.cpu_ids),
            unkillable_s=settings.unkillable_step_timeout_s,
            unkillable_program=settings.unkillable_step_program,
            denied_devices=_denied_devices(self._nodes[share.node], share),
        )
        if settings.prolog or settings.epilog:
            files = job_files(job, allocation)
            variables = prolog_variables(job, allocation, share.node, self._facts, files)
            order.env = {"PATH": _PROLOG_PATH, "BIREME_HOME": self._home, **variables}
            order.prolog, order.epilog = settings.prolog, settings.epilog
            order.script_timeout_s = settings.prolog_epilog_timeout_s
        return order

    def start(self, job: Job, allocation: Allocation, prepare: Prepare, components: Sequence[Component]) -> Start:
        """The first node's order to run the batch script."""
        spec, node = job.spec, allocation.first_node
        variables = batch_variables(
            job,
            allocation,
            self._facts,
            started_at=time.time(),
            components=components,
            confined=node in self.confined_devices,
        )
        files = job_files(job, allocation)
        batch = Batch(
            script=self._script(spec.script),
            argv=spec.argv,
            env=self._marked(self._furthered(spec.environment, job, allocation, variables), job, allocation),
            cwd=self._begins_in(spec),
            stdin=files.std_in,
            stdout=files.std_out,
            stderr=files.std_err,
            append=self._appends(spec.open_append),
            umask=spec.umask,
            box=box_of(spec, spec.work_dir, self.containers),
        )
        settings = self._config.settings
        return Start(
            **asdict(prepare),
            batch=batch,
            replica=spec.replica,
            task_prolog=(settings.task_prolog,) if settings.task_prolog else (),
            task_epilog=(settings.task_epilog,) if settings.task_epilog else (),
        )

    def _furthered(
        self, environment: str, job: Job, allocation: Allocation, variables: Mapping[str, str]
    ) -> dict[str, str]:
        user = with_experiment(self._environment(environment), self.further(job, allocation))
        return merged_environment(user, variables)

    def _begins_in(self, spec: JobSpec) -> str:
        """Where pods are the containers, their working directory is the script's."""
        asked = spec.container_workdir if self.containers is None else ""
        return os.path.join(spec.work_dir, asked) if asked else spec.work_dir

    def _appends(self, asked: bool | None) -> bool:
        return asked if asked is not None else self._config.raw.get("JobFileAppend", "0") == "1"

    def _marked(self, env: dict[str, str], job: Job, allocation: Allocation) -> dict[str, str]:
        """Adds what makes a process Bireme's: its cluster, its job, and the commands that reach the cluster."""
        env["BIREME_HOME"] = self._home
        env[JOB_MARKER] = f"{job.id}.{allocation.generation}"
        own_bin = f"{self._home}/bin"
        path = env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        if not path.startswith(f"{own_bin}:"):
            env["PATH"] = f"{own_bin}:{path}"
        return env

    def _read_environment(self, blob_id: str) -> dict[str, str]:
        loaded: dict[str, str] = json.loads(self._blobs.get(blob_id)) if blob_id else {}
        return loaded

    def _read_script(self, blob_id: str) -> str:
        return self._blobs.get(blob_id).decode("utf-8", "surrogateescape")

    # --- steps ---------------------------------------------------------------------------------------------

    def step(self, job: Job, allocation: Allocation, step: Step) -> Iterator[tuple[str, StartStep]]:
        """(node, order) for each node of the step. Raises MultiProgError."""
        spec, settings = step.spec, self._config.settings
        inherited = with_experiment(self._environment(spec.environment), self.further(job, allocation))
        launch = Launch(own_allocation="SLURM_JOB_ID" not in inherited)
        variables = step_variables(job, allocation, step, self._facts, launch)
        fallbacks = fallback_variables(step)
        if job.spec.replica is not None:  # as the script has them, unless it gave the step others
            fallbacks |= replica_variables(job.spec.replica)
        env = self._marked(merged_step_environment(inherited, variables, fallbacks), job, allocation)
        argvs = programs(spec.multi_prog, step.ntasks) if spec.multi_prog else None
        common = StartStep(
            job=job.id,
            gen=allocation.generation,
            step=step.id,
            tasks=[],
            io_key=spec.io_key,
            argv=spec.argv,
            env=env,
            cwd=spec.work_dir or job.spec.work_dir,
            umask=job.spec.umask if spec.umask is None else spec.umask,
            append=self._appends(spec.open_append or job.spec.open_append),
            cpu_bind=spec.cpu_bind,
            task_prolog=tuple(path for path in (settings.task_prolog, spec.task_prolog) if path),
            task_epilog=tuple(path for path in (spec.task_epilog, settings.task_epilog) if path),
            box=box_of(spec, spec.work_dir or job.spec.work_dir, self.containers),
        )
        if spec.pty and ROWS_VARIABLE in env:
            common.window = Window(int(env[ROWS_VARIABLE]), int(env[COLUMNS_VARIABLE]))
        if spec.mpi == "pmi2":
            common.mpi, common.world = spec.mpi, _world(step, allocation)
        for index, node in enumerate(step.nodes):
            held = sum(share.cpus for share in allocation.shares if share.node == node.node)
            tasks = [self._task(job, step, index, local, argvs, held) for local in range(len(node.task_ids))]
            yield node.node, replace(common, tasks=tasks, cpu_ids=node.cpu_ids)

    def _task(
        self, job: Job, step: Step, index: int, local: int, argvs: list[tuple[str, ...]] | None, held: int
    ) -> StepTask:
        node = step.nodes[index]
        rank, confined = node.task_ids[local], node.node in self.confined_devices
        env = task_variables(step, index, local, self._facts, held=held, confined=confined)
        task = StepTask(id=rank, env=env, argv=() if argvs is None else argvs[rank])
        if step.spec.pty:  # task 0 has the terminal, the others have nothing, as with Slurm
            task.terminal = step.first_task + rank == 0
            task.stdin = task.stdout = task.stderr = "" if task.terminal else _NOWHERE
        else:
            task.stdin, task.stdout, task.stderr = _stdio(job, step, node, index, rank)
        return task


def _begun_at(job: Job) -> float:
    """When this start of it was allocated; an order that is repeated later finds the job known, or running."""
    if isinstance(job.phase, Starting):
        return job.phase.since
    return job.phase.started_at if isinstance(job.phase, Running) else 0.0


def job_files(job: Job, allocation: Allocation) -> JobFiles:
    std_in, std_out, std_err = stream_paths(job, allocation)
    return JobFiles(std_in=std_in, std_out=std_out, std_err=std_err)


def _stdio(job: Job, step: Step, node: StepNode, index: int, rank: int) -> Iterator[str]:
    """Where the task's three streams go: nothing said means to and from srun."""
    spec = step.spec
    task_index = step.first_task + rank  # users count over the whole step, however many components it lies in
    values = FilenameValues(
        job_id=spec.het.leader if spec.het else job.id,
        array_job_id=job.array_job_id,
        array_task_id=job.task_id,
        step=step.id if step.id >= 0 else step.label,
        node=_short(node.node),
        node_index=step.first_node + index,
        task_index=task_index,
        user=job.spec.owner.user,
        job_name=job.spec.name,
    )
    work_dir = spec.work_dir or job.spec.work_dir
    patterns = (spec.std_in, spec.std_out, spec.std_err or spec.std_out)
    return (_stream(pattern, values, task_index, work_dir) for pattern in patterns)


def _stream(pattern: str, values: FilenameValues, task_index: int, work_dir: str) -> str:
    """The file of one stream; empty when it is srun's."""
    if pattern in ("", "all"):
        return ""
    if pattern == "none":
        return _NOWHERE
    if pattern.isdecimal():  # this one task's stream is srun's, the others have none
        return "" if int(pattern) == task_index else _NOWHERE
    return _absolute(expand_filename(pattern, values), work_dir)


def _world(step: Step, allocation: Allocation) -> World:
    """What an MPI program's tasks are told of each other: its name, where each rank is, which rank is our task 0."""
    if step.spec.het:
        job_id, places = step.spec.het.leader, list(step.spec.het.node_of_task)
    else:
        where = {rank: index for index, node in enumerate(step.nodes) for rank in node.task_ids}
        job_id, places = step.job_id, [where[rank] for rank in range(step.ntasks)]
    return World(name=f"{job_id}.{allocation.generation}.{step.id}", node_of_rank=places, first_rank=step.first_task)


def _denied_devices(node: NodeConfig, share: NodeShare) -> tuple[str, ...]:
    """Device files of the node that are not the job's."""
    return tuple(
        device.file
        for pool in node.gres
        for device in pool.devices
        if device.file
        and device.index not in (share.gpus_seen() if pool.name == "gpu" else share.gres_indices(pool.name))
    )


def _short(node: str) -> str:
    return node.partition(".")[0]


def _absolute(path: str, work_dir: str) -> str:
    return path if path.startswith("/") else os.path.join(work_dir, path)
