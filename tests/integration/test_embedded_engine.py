"""The embedded engine on two virtual nodes, driven by commands, without the runtime."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pwd
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bireme.agent.confining.confinement import probe
from bireme.agent.messages import protocol
from bireme.agent.messages.orders import Ping
from bireme.agent.stdio.stream_client import Fences, StepStreams
from bireme.core.model import commands as c
from bireme.core.model import observations as o
from bireme.core.model.cluster import ClusterConfig, NodeConfig, PartitionConfig, Settings
from bireme.core.model.jobs import Job, JobKind, JobSpec, Owner, Starting
from bireme.core.model.resources import Allocation, ExitStatus, NodeShare
from bireme.core.model.steps import Step, StepNode, StepSpec
from bireme.engines.embedded import EmbeddedEngine

DEADLINE_S = 30.0
NODES = ("n1", "n2")


class MemoryBlobs:
    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def put(self, data: bytes, uid: int | None = None) -> str:
        key = hashlib.sha256(data).hexdigest()
        self._kept[key] = data
        return key

    def get(self, blob_id: str) -> bytes:
        return self._kept[blob_id]


class Cluster:
    """An engine, what it reported, and short ways to make jobs."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.home = home
        self.blobs = MemoryBlobs()
        self.seen: list[o.Observation] = []
        self._news = asyncio.Event()
        nodes = tuple(NodeConfig(name=name, cpus=4, memory_mib=1000) for name in NODES)
        partition = PartitionConfig(name="main", nodes=NODES, default=True)
        self.config = ClusterConfig(nodes=nodes, partitions=(partition,), settings=Settings(**settings))
        self.engine = self.new_engine()

    def new_engine(self, **options: Any) -> EmbeddedEngine:
        return EmbeddedEngine(self.home, self.config, self.blobs, **options)

    def report(self, observations: Sequence[o.Observation]) -> None:
        self.seen.extend(observations)
        self._news.set()

    async def until(self, kind: type, **facts: Any) -> Any:
        """The first observation of this kind with these facts."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for seen in self.seen:
                    if isinstance(seen, kind) and all(getattr(seen, k) == v for k, v in facts.items()):
                        return seen
                self._news.clear()
                await self._news.wait()

    def job(self, job_id: int, script: str = "", nodes: Sequence[str] = ("n1",), **changes: Any) -> c.LaunchJob:
        me = pwd.getpwuid(os.getuid())
        spec = JobSpec(
            owner=Owner(uid=me.pw_uid, gid=me.pw_gid, user=me.pw_name),
            script=self.blobs.put(script.encode()),
            environment=self.blobs.put(json.dumps({"PATH": os.environ["PATH"], "GIVEN": "yes"}).encode()),
            work_dir=str(self.home),
            **changes,
        )
        shares = tuple(NodeShare(node, 2, 100, tasks=2) for node in nodes)
        allocation = Allocation(job_id, 1, "main", shares)
        job = Job(job_id, spec, time.time(), Starting(allocation, time.time()), generation=1)
        return c.LaunchJob(job, allocation)

    def step(self, launch: c.LaunchJob, step_id: int = 0, **changes: Any) -> c.LaunchStep:
        """Two tasks on each of the job's nodes."""
        names = launch.allocation.node_names
        environment = self.blobs.put(json.dumps({"PATH": os.environ["PATH"], "SLURM_JOB_ID": "x"}).encode())
        spec = StepSpec(io_key="secret", environment=environment, **changes)
        nodes = tuple(StepNode(name, (2 * i, 2 * i + 1), 2) for i, name in enumerate(names))
        step = Step(launch.job.id, step_id, spec, nodes, time.time())
        return c.LaunchStep(launch.job, launch.allocation, step)

    def streams(self, command: c.LaunchStep) -> StepStreams:
        endpoints = self.engine.step_endpoints(command.job.id, command.step.id)
        addresses = {end.node: end.address for end in endpoints}
        return StepStreams(command.job.id, command.step.id, "secret", addresses, Fences())

    async def output(self, command: c.LaunchStep, stdin: bytes = b"") -> StepOutput:
        with self.streams(command) as streams:
            streams.connect()
            if stdin:
                streams.send_stdin(stdin)
            streams.send_stdin(b"")
            return await asyncio.to_thread(collect, streams)

    def terminate(self, launch: c.LaunchJob, grace_s: int = 0) -> c.TerminateJob:
        return c.TerminateJob(launch.job.id, 1, launch.allocation.node_names, grace_s)


class StepOutput:
    def __init__(self) -> None:
        self.stdout: dict[int, bytes] = {}
        self.stderr: dict[int, bytes] = {}
        self.exits: dict[int, dict[str, Any]] = {}
        self.ended: list[str] = []


def collect(streams: StepStreams) -> StepOutput:
    output, deadline = StepOutput(), time.monotonic() + DEADLINE_S
    while not streams.finished:
        assert time.monotonic() < deadline, "the step's streams did not end"
        for frame in streams.poll(1.0)[0]:
            if frame.kind in (protocol.STDOUT, protocol.STDERR):
                kept = output.stdout if frame.kind == protocol.STDOUT else output.stderr
                kept[frame.task] = kept.get(frame.task, b"") + frame.payload
            elif frame.kind == protocol.TASK_EXITED:
                output.exits[frame.task] = frame.value()
            elif frame.kind == protocol.STEP_ENDED:
                output.ended.append(frame.node)
    return output


def is_running(pid: int) -> bool:
    """A zombie whose new parent is slow to wait for it does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@asynccontextmanager
async def running(home: Path, **settings: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(home, **settings)
    await cluster.engine.start(cluster.report)
    try:
        yield cluster
    finally:
        await cluster.engine.end_jobs()
        await cluster.engine.stop()


def test_batch_job_runs_and_says_how_it_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            script = '#!/bin/bash\necho "$SLURM_JOB_ID $GIVEN $(hostname) $1"\nexit 7\n'
            launch = cluster.job(42, script, argv=("word",))
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=42, generation=1)
            ended = await cluster.until(o.BatchFinished, job_id=42)
            assert ended.status == ExitStatus(code=7)
            assert ended.cleared
            words = (tmp_path / "slurm-42.out").read_text().split()
            assert words[:2] == ["42", "yes"]
            if cluster.engine.isolation["n1"]["kind"] != "none":
                assert words[2] == "n1"
            assert words[3] == "word"
            cluster.engine.acknowledge(42, 1)

    asyncio.run(scenario())


def test_gang_starts_on_all_nodes_and_is_cleared_on_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(1, "#!/bin/bash\necho started\nsleep 1000\n", NODES)
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=1)
            cluster.engine.send([cluster.terminate(launch, grace_s=10)])
            ended = await cluster.until(o.BatchFinished, job_id=1)
            assert ended.status.signal == signal.SIGTERM
            assert not ended.cleared
            await cluster.until(o.JobCleared, job_id=1)
            assert "CANCELLED AT" in (tmp_path / "slurm-1.out").read_text()

    asyncio.run(scenario())


def test_gang_is_refused_whole_when_one_prolog_fails(tmp_path: Path) -> None:
    prolog = tmp_path / "prolog"
    prolog.write_text("#!/bin/sh\n[ $SLURMD_NODENAME = n1 ]\n")
    prolog.chmod(0o755)

    async def scenario() -> None:
        async with running(tmp_path, prolog=(str(prolog),)) as cluster:
            cluster.engine.send([cluster.job(1, "#!/bin/bash\ntouch ran\n", NODES)])
            refused = await cluster.until(o.JobRefused, job_id=1)
            assert refused.prolog_failed_on
            assert "n2" in refused.reason
            assert not (tmp_path / "ran").exists()

    asyncio.run(scenario())


def test_gang_is_refused_whole_when_one_node_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bireme.engines.crew.engine._TAKE_BACK_S", 0.3)

    async def scenario() -> None:
        async with running(tmp_path, batch_start_timeout_s=1) as cluster:
            deaf = int((tmp_path / "agents" / "n2" / "agent.pid").read_text())
            os.kill(deaf, signal.SIGSTOP)
            try:
                cluster.engine.send([cluster.job(1, "#!/bin/bash\ntouch ran\n", NODES)])
                refused = await cluster.until(o.JobRefused, job_id=1)
                assert "n2" in refused.reason
                cluster.engine.acknowledge(1, 1)
                usage = await cluster.engine._links["n1"].ask(Ping(id=0))
                assert usage is not None
                assert usage.jobs == 0
            finally:
                os.kill(deaf, signal.SIGCONT)
            # The node that woke up finds the order to forget the job behind the order to prepare it.
            answer = await cluster.engine._links["n2"].ask(Ping(id=0), DEADLINE_S)
            assert answer is not None
            assert answer.jobs == 0
            assert not (tmp_path / "ran").exists()

    asyncio.run(scenario())


def test_terminating_a_job_nobody_knows_is_confirmed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.engine.send([c.TerminateJob(99, 3, NODES, 0)])
            cleared = await cluster.until(o.JobCleared, job_id=99)
            assert cleared.generation == 3

    asyncio.run(scenario())


def test_step_output_comes_through_its_streams(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(5, nodes=NODES, kind=JobKind.INTERACTIVE)
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=5)
            program = 'cat; echo "$SLURM_PROCID $SLURM_LOCALID $SLURMD_NODENAME"; exit $SLURM_PROCID'
            step = cluster.step(launch, argv=("bash", "-c", program))
            cluster.engine.send([step])
            output = await cluster.output(step, stdin=b"in\n")
            assert output.stdout == {
                0: b"in\n0 0 n1\n",
                1: b"in\n1 1 n1\n",
                2: b"in\n2 0 n2\n",
                3: b"in\n3 1 n2\n",
            }
            assert {task: status["code"] for task, status in output.exits.items()} == {0: 0, 1: 1, 2: 2, 3: 3}
            await cluster.until(o.StepBegan, job_id=5, step_id=0)
            second = await cluster.until(o.StepNodeFinished, job_id=5, step_id=0, node="n2")
            assert second.status.code == 3
            assert second.usage.tasks == 2

    asyncio.run(scenario())


def test_step_files_and_multi_prog(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(5, nodes=NODES, kind=JobKind.INTERACTIVE)
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=5)
            programs = "0 echo first\n1-2 echo task %t offset %o\n* echo rest\n"
            step = cluster.step(launch, std_out="out-%t-%N", multi_prog=programs)
            cluster.engine.send([step])
            for node in NODES:
                await cluster.until(o.StepNodeFinished, job_id=5, node=node)
            names = ("out-0-n1", "out-1-n1", "out-2-n2", "out-3-n2")
            texts = [(tmp_path / name).read_text() for name in names]
            assert texts == ["first\n", "task 1 offset 0\n", "task 2 offset 1\n", "rest\n"]

    asyncio.run(scenario())


def test_step_of_a_missing_program_ends_with_slurms_code_and_words(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(5, kind=JobKind.INTERACTIVE)
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=5)
            step = cluster.step(launch, argv=("no-such-program",))
            cluster.engine.send([step])
            output = await cluster.output(step)
            assert output.stderr[0] == b"slurmstepd: error: execve(): no-such-program: No such file or directory\n"
            finished = await cluster.until(o.StepNodeFinished, job_id=5)
            assert finished.status.code == 2

    asyncio.run(scenario())


def test_step_can_be_signalled_and_terminated(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(5, kind=JobKind.INTERACTIVE)
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=5)
            cluster.engine.send([cluster.step(launch, 0, argv=("sleep", "1000"))])
            await cluster.until(o.StepBegan, job_id=5, step_id=0)
            cluster.engine.send([c.SignalStep(5, 1, 0, ("n1",), signal.SIGUSR1)])
            finished = await cluster.until(o.StepNodeFinished, job_id=5, step_id=0)
            assert finished.status.signal == signal.SIGUSR1
            cluster.engine.send([cluster.step(launch, 1, argv=("sleep", "1000"))])
            await cluster.until(o.StepBegan, job_id=5, step_id=1)
            cluster.engine.send([c.TerminateStep(5, 1, 1, ("n1",), 0)])
            finished = await cluster.until(o.StepNodeFinished, job_id=5, step_id=1)
            assert finished.status.signal == signal.SIGKILL

    asyncio.run(scenario())


def test_jobs_outlive_the_engine_and_are_found_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        await cluster.engine.start(cluster.report)
        launch = cluster.job(8, "#!/bin/bash\nuntil [ -e go ]; do sleep 0.05; done\necho once >> count\nexit 4\n")
        cluster.engine.send([launch])
        await cluster.until(o.JobLaunched, job_id=8)
        await cluster.engine.stop()
        (tmp_path / "go").touch()
        cluster.seen.clear()
        cluster.engine = cluster.new_engine()
        await cluster.engine.start(cluster.report)
        try:
            answered = await cluster.until(o.NodeAnswered, node="n1")
            assert answered.holds == ((8, 1),)
            cluster.engine.send([launch])  # said again by a daemon that does not know: it must not run twice
            ended = await cluster.until(o.BatchFinished, job_id=8)
            assert ended.status.code == 4
            assert (tmp_path / "count").read_text() == "once\n"
        finally:
            await cluster.engine.end_jobs()
            await cluster.engine.stop()

    asyncio.run(scenario())


def test_agents_that_live_and_are_not_heard_are_known(tmp_path: Path) -> None:
    """Also one whose folder was removed."""

    async def scene() -> None:
        async with running(tmp_path) as cluster:
            assert await cluster.engine.living_agents() == {"n1": True, "n2": True}
            other = cluster.new_engine()
            shutil.rmtree(tmp_path / "agents" / "n2")
            assert await other.living_agents() == {"n1": False, "n2": False}
        assert await cluster.engine.living_agents() == {}

    asyncio.run(scene())


def test_a_killed_agent_is_replaced_and_its_job_reported_vanished(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(9, "#!/bin/bash\necho $$ > pid\nexec sleep 1000\n")
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=9)
            agent = int((tmp_path / "agents" / "n1" / "agent.pid").read_text())
            os.kill(agent, signal.SIGKILL)
            vanished = await cluster.until(o.JobVanished, job_id=9)
            assert vanished.node == "n1"
            cluster.engine.send([cluster.terminate(launch)])
            await cluster.until(o.JobCleared, job_id=9)
            recorded = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else ""
            if recorded.strip():  # it may have been killed before it wrote
                assert not is_running(int(recorded))

    asyncio.run(scenario())


def test_live_usage_names_the_batch_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            cluster.engine.send([cluster.job(3, "#!/bin/bash\nsleep 1000\n")])
            await cluster.until(o.JobLaunched, job_id=3)
            usage = await cluster.engine.live_usage(3)
            while not usage["batch"]["max_rss_kib"]:  # as of a process that is about to become its program
                usage = await cluster.engine.live_usage(3)
            assert usage["batch"]["tasks"] == 1
            assert usage["batch"]["max_rss_kib"] > 0

    asyncio.run(scenario())


MPI_SUM = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
  int rank, size, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("%d of %d: %d\\n", rank, size, sum);
  return MPI_Finalize();
}
"""


@pytest.mark.skipif(shutil.which("mpicc.mpich") is None, reason="needs MPICH's compiler")
def test_an_mpi_program_meets_over_two_nodes(tmp_path: Path) -> None:
    (tmp_path / "sum.c").write_text(MPI_SUM)
    subprocess.run(["mpicc.mpich", "-o", tmp_path / "sum", tmp_path / "sum.c"], check=True)

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(5, nodes=NODES, kind=JobKind.INTERACTIVE)
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=5)
            step = cluster.step(launch, argv=(str(tmp_path / "sum"),), mpi="pmi2")
            cluster.engine.send([step])
            output = await cluster.output(step)
            assert output.stdout == {rank: f"{rank} of 4: 6\n".encode() for rank in range(4)}, output.stderr

    asyncio.run(scenario())


def may_confine_memory() -> bool:
    probed = {capability.name: capability.ok for capability in probe()}
    return probed["confine memory"]


@pytest.mark.skipif(not may_confine_memory(), reason="the kernel does not let us limit memory here")
def test_running_out_of_memory_is_told_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path)
        cluster.engine = cluster.new_engine(confine={"memory": True})
        await cluster.engine.start(cluster.report)
        try:
            hog = "#!/bin/bash\nhead -c 400000000 /dev/zero | tail\n"
            cluster.engine.send([cluster.job(1, hog), cluster.job(2, "#!/bin/bash\nkill -9 $$\n")])
            greedy = await cluster.until(o.BatchFinished, job_id=1)
            assert greedy.status.out_of_memory
            killed = await cluster.until(o.BatchFinished, job_id=2)
            assert killed.status == ExitStatus(signal=signal.SIGKILL)
            assert killed.cleared
        finally:
            await cluster.engine.end_jobs()
            await cluster.engine.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("missing", ["script", "environment"])
def test_a_job_whose_blob_is_gone_is_refused_for_good(tmp_path: Path, missing: str) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(3, "#!/bin/bash\n")
            cluster.blobs._kept.pop(getattr(launch.job.spec, missing))
            cluster.engine.send([launch])
            refused = await cluster.until(o.JobRefused, job_id=3)
            assert refused.permanent

    asyncio.run(scenario())


# --- orders that fail or do not arrive -----------------------------------------------------------------------


def agent_pid(home: Path, node: str) -> int:
    return int((home / "agents" / node / "agent.pid").read_text())


@asynccontextmanager
async def without_descriptors(home: Path, node: str) -> AsyncIterator[None]:
    """The agent can open nothing: neither /proc nor a pipe."""
    pid = agent_pid(home, node)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


async def until_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("grace_s", [0, 10])
def test_an_order_that_an_agent_fails_at_is_said_again_until_it_is_done(tmp_path: Path, grace_s: int) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            launch = cluster.job(1, "#!/bin/bash\nsleep 1000\n")
            cluster.engine.send([launch])
            await cluster.until(o.JobLaunched, job_id=1)
            log = tmp_path / "agents" / "n1" / "agent.log"
            async with without_descriptors(tmp_path, "n1"):
                cluster.engine.send([cluster.terminate(launch, grace_s)])
                if grace_s:
                    await until_true(lambda: log.read_text().count("order 'terminate' failed") >= 2)
                else:  # its keeper kills, and needs none of the agent's descriptors for it
                    await cluster.until(o.JobCleared, job_id=1)
            await cluster.until(o.JobCleared, job_id=1)
            cluster.engine.acknowledge(1, 1)

    asyncio.run(scenario())


def test_orders_given_while_an_agents_socket_refuses_arrive_once_it_does_not(tmp_path: Path) -> None:
    """A signal too, and only once, though a connection ended in between."""

    async def scenario() -> None:
        async with running(tmp_path) as cluster:
            script = "#!/bin/bash\ntrap 'echo usr1 >>signals' USR1\necho ready >ready\nwhile :; do sleep 0.05; done\n"
            launch = cluster.job(1, script)
            cluster.engine.send([launch])
            await until_true((tmp_path / "ready").exists)
            link = cluster.engine.link("n1", (1, 1))
            socket = tmp_path / "agents" / "n1" / "agent.sock"
            socket.rename(socket.with_suffix(".away"))
            link.begin_again()
            await until_true(lambda: not link.connected.is_set())
            cluster.engine.send([c.SignalJob(1, 1, ("n1",), signal.SIGUSR1, "batch")])
            assert not (tmp_path / "signals").exists()
            socket.with_suffix(".away").rename(socket)
            await until_true((tmp_path / "signals").exists)
            await until_true(lambda: not link._undone)
            link.begin_again()
            await until_true(link.connected.is_set)
            cluster.engine.send([cluster.terminate(launch)])
            await cluster.until(o.JobCleared, job_id=1)
            assert (tmp_path / "signals").read_text() == "usr1\n"
            cluster.engine.acknowledge(1, 1)

    asyncio.run(scenario())
