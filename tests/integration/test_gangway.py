"""A pod's agent and the daemon's gateway, as two processes that share nothing but a loopback port."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bireme.agent.messages.orders import Batch, Order, Start, StartStep, StepTask
from bireme.agent.messages.protocol import socket_path
from bireme.agent.pod.fetcher import Fetcher
from bireme.agent.pod.gangway import Gangway, RefusedError
from bireme.agent.starting.batch import batch_streams
from bireme.agent.system.identity import Identity
from bireme.agent.system.output import OpenFileError, open_output
from bireme.core.model.jobs import Owner
from bireme.engines.kubernetes.crossing import brought as brought_module
from bireme.engines.kubernetes.crossing.as_submitter import open_for
from bireme.engines.kubernetes.crossing.brought import MIB, MOST_BYTES, BroughtInput
from bireme.engines.kubernetes.crossing.gateway import Berth, Delivery, Gateway, Offer
from bireme.engines.kubernetes.crossing.returned import ReturnedOutput

certificate = pytest.importorskip("bireme.own_certificate", reason="needs the kubernetes extra")

DEADLINE_S = 30.0
HERE = Berth(7, 1, "n1")
OWNER = Owner(uid=os.getuid(), gid=os.getgid(), user="ada")


class Harbour:
    """A gateway, and pods that may call it."""

    def __init__(self, folder: Path, sockets: str) -> None:
        self.folder = folder
        self.admitted: list[tuple[Owner, int]] = []
        pem = folder / "gateway.pem"
        self.authority = folder / "ca.pem"
        self.authority.write_text(certificate.ensure_certificate(pem))
        self.crossing = folder / "nodes"
        self.certificate, self.sockets = pem, folder / sockets
        self.gateway = self.new_gateway()
        self.spool, self.inbox = folder / "spool", folder / "inbox"
        self.returned = ReturnedOutput(folder / "output", str(self.spool))
        self.brought = BroughtInput(folder / "input", str(self.inbox))
        self.gives = True
        self.port = 0

    def new_gateway(self, *, settled: bool = True) -> Gateway:
        gateway = Gateway(
            self.sockets, self.crossing, b"secret", self.certificate, self.admit, self.deliver, self.provide
        )
        if settled:
            gateway.settle()
        return gateway

    def admit(self, sock: socket.socket, owner: Owner, job_id: int) -> None:
        """Stands for the API: says whom it takes the caller for."""
        self.admitted.append((owner, job_id))
        sock.sendall(f"hello {owner.user}\n".encode())
        sock.close()

    def deliver(self, berth: Berth, name: str) -> Delivery:
        return self.returned.delivery(berth, name)

    def provide(self, berth: Berth, name: str) -> Offer:
        if not self.gives:
            raise ValueError("not now")
        return self.brought.offer(berth, name)

    def gangway(self, berth: Berth, *, token: str | None = None) -> Gangway:
        home = self.folder / "home" / berth.node
        home.mkdir(parents=True, exist_ok=True)
        token_file = home / "token"
        token_file.write_text(token or self.gateway.token(berth))
        return Gangway("127.0.0.1", self.port, self.authority, token_file, home, berth.node, berth.text)

    def pod_settings(self, berth: Berth) -> Path:
        gangway = self.gangway(berth)
        file = gangway.home / "pod.json"
        settings = {"home": str(gangway.home), "host": "127.0.0.1", "port": self.port}
        settings |= {"authority": str(self.authority), "token_file": str(gangway.token_file)}
        settings |= {"spool": str(self.spool), "inbox": str(self.inbox)}
        file.write_text(json.dumps(settings))
        return file

    @asynccontextmanager
    async def pod(self, berth: Berth) -> AsyncIterator[asyncio.subprocess.Process]:
        """The real thing: `python -m bireme.agent.pod`."""
        self.gateway.expect(berth, OWNER, berth.job_id)
        command = [sys.executable, "-m", "bireme.agent.pod", str(self.pod_settings(berth))]
        process = await asyncio.create_subprocess_exec(*command)
        try:
            await asyncio.wait_for(self.gateway.attached(berth), DEADLINE_S)
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await asyncio.wait_for(process.wait(), DEADLINE_S)


@asynccontextmanager
async def harbour(sockets: str = "pods") -> AsyncIterator[Harbour]:
    folder = Path(tempfile.mkdtemp(prefix="gw"))
    made = Harbour(folder, sockets)
    made.port = await made.gateway.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.gateway.stop()
        shutil.rmtree(folder)


async def talk(path: str, *words: dict[str, object]) -> dict[str, object]:
    """The first line that comes back on this unix socket."""
    with socket_path(path) as reachable:
        reader, writer = await asyncio.open_unix_connection(reachable)
    for word in words:
        writer.write(json.dumps(word).encode() + b"\n")
    answer = await asyncio.wait_for(reader.readline(), DEADLINE_S)
    writer.close()
    return json.loads(answer)


@pytest.mark.parametrize("sockets", ["pods", "deep" * 40], ids=["here", "deep in folders"])
def test_the_agent_of_a_pod_is_reached_like_one_of_this_machine(sockets: str) -> None:
    """A socket's address holds 107 bytes; a home, and a node's name, may be longer."""

    async def run() -> None:
        async with harbour(sockets) as port, port.pod(HERE):
            address = port.gateway.address(HERE).removeprefix("unix:")
            welcome = await talk(address, {"hello": "daemon", "version": 1})
            assert (welcome["ev"], welcome["node"], welcome["holds"]) == ("welcome", "n1", [])

    asyncio.run(run())


def test_a_pod_ends_when_the_kubelet_says_so_and_then_counts_as_away() -> None:
    async def run() -> None:
        async with harbour() as port, port.pod(HERE) as process:
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
            address = Path(port.gateway.address(HERE).removeprefix("unix:"))
            async with asyncio.timeout(DEADLINE_S):
                while address.exists():
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_srun_in_one_pod_reaches_the_agent_of_another_pod_of_its_job() -> None:
    async def run() -> None:
        there = replace(HERE, node="n2")
        async with harbour() as port, port.pod(HERE), port.pod(there):
            path = str(port.gangway(HERE).home / "nodes" / "crossing.sock")
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"peer": "7.1.n2"}\n{"hello": "daemon"}\n')
            welcome = json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))
            assert welcome["node"] == "n2"
            writer.close()

    asyncio.run(run())


def test_commands_in_a_pod_reach_the_api_as_the_owner_of_the_job() -> None:
    async def run() -> None:
        async with harbour() as port, port.pod(HERE):
            path = str(port.gangway(HERE).home / "run" / "api.sock")
            reader, writer = await asyncio.open_unix_connection(path)
            assert await asyncio.wait_for(reader.readline(), DEADLINE_S) == b"hello ada\n"
            assert port.admitted == [(OWNER, 7)]
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("7.1.n1:0000", "not a token of this cluster"),
        ("nonsense", "refused"),
        (None, "no pod of job 7 is expected on node n1"),
    ],
)
def test_whoever_has_no_good_token_is_turned_away(token: str | None, why: str) -> None:
    async def run() -> None:
        async with harbour() as port:
            with pytest.raises(RefusedError, match=why):
                await port.gangway(HERE, token=token).dial({"as": "control"})

    asyncio.run(run())


def test_a_pod_that_has_called_costs_little_memory() -> None:
    """Thousands of them may be there at once. Both ends of the connection are in this process."""
    many = 20

    async def run() -> int:
        async with harbour() as port:
            calls = []
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                for number in range(many):
                    berth = replace(HERE, node=f"n{number}")
                    port.gateway.expect(berth, OWNER, berth.job_id)
                    calls.append(await port.gangway(berth).dial({"as": "control", "address": "10.0.0.1"}))
                return tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()
                for _, writer in calls:
                    writer.close()

    assert asyncio.run(run()) < many * 256 * 1024


def test_a_pod_cannot_answer_for_another_pod() -> None:
    async def run() -> None:
        other = Berth(8, 1, "n1")
        async with harbour() as port:
            port.gateway.expect(HERE, OWNER, 7)
            port.gateway.expect(other, OWNER, 8)
            reader, _ = await port.gangway(HERE).dial({"as": "control"})
            wanted = asyncio.create_task(talk(port.gateway.address(HERE).removeprefix("unix:")))
            number = json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))["carry"]
            with pytest.raises(RefusedError, match="nobody waits"):
                await port.gangway(other).dial({"as": "carry", "id": number})
            with pytest.raises(RefusedError, match="is expected"):
                await port.gangway(other).dial({"as": "stream", "peer": HERE.text})
            wanted.cancel()

    asyncio.run(run())


def test_whoever_asks_for_an_agent_is_told_whether_to_ask_again() -> None:
    """A daemon that starts does not know yet; one that knows that a pod has ended says so."""
    there = replace(HERE, node="n2")

    async def run() -> None:
        async with harbour() as port:
            starting = port.new_gateway(settled=False)
            number = await starting.start("127.0.0.1", 0)
            caller = replace(port.gangway(HERE), port=number)
            for word in ({"as": "control"}, {"as": "stream", "peer": there.text}):
                with pytest.raises(ConnectionResetError, match="later: the daemon is starting"):
                    await caller.dial(word)
            starting.expect(HERE, OWNER, 7)
            with pytest.raises(ConnectionResetError, match="later: the daemon is starting"):
                await caller.dial({"as": "stream", "peer": there.text})
            starting.expect(there, OWNER, 7)
            starting.settle()
            waiting = asyncio.create_task(caller.dial({"as": "stream", "peer": there.text}))
            await asyncio.sleep(0)
            starting.has_ended(there)
            with pytest.raises(RefusedError, match="the pod of job 7 on node n2 is gone"):
                await asyncio.wait_for(waiting, DEADLINE_S)
            await starting.stop()

    asyncio.run(run())


async def cross(port: Harbour, peer: str, *words: dict[str, object]) -> bytes:
    """What comes back at the crossing of the daemon's machine, until its end or a whole line."""
    reader, writer = await asyncio.open_unix_connection(port.crossing / "crossing.sock")
    for word in ({"peer": peer}, *words):
        writer.write(json.dumps(word).encode() + b"\n")
    answer = await asyncio.wait_for(reader.readline(), DEADLINE_S)
    writer.close()
    return answer


def test_srun_on_the_daemons_machine_asks_for_agents_at_the_crossing() -> None:
    async def run() -> None:
        async with harbour() as port, port.pod(HERE):
            assert json.loads(await cross(port, HERE.text, {"hello": "daemon"}))["node"] == "n1"
            assert b"no pod of job 8 is expected on node n1" in await cross(port, "8.1.n1")

    asyncio.run(run())


def test_one_user_who_only_knocks_there_does_not_stop_the_others() -> None:
    """Half a question, a thousand times: so many are heard at once, the rest are sent away, and nothing is kept."""

    async def run() -> None:
        async with harbour() as port:
            path = port.crossing / "crossing.sock"
            knocking = [await asyncio.open_unix_connection(path) for _ in range(1000)]
            for _, writer in knocking:
                writer.write(b'{"peer": ')

            def is_away(reader: asyncio.StreamReader) -> bool:  # reset, if its words came before it was sent away
                return reader.at_eof() or reader.exception() is not None

            await until(lambda: sum(is_away(reader) for reader, _ in knocking) >= 1000 - 256)
            for _, writer in knocking:
                writer.close()
            answer = b""
            async with asyncio.timeout(DEADLINE_S):
                while not answer:
                    answer = await cross(port, "8.1.n1")
            assert b"no pod of job 8 is expected on node n1" in answer

    asyncio.run(run())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_nobody_gets_at_another_users_agent_there() -> None:
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(sys.argv[2].encode()); print(s.makefile('rb').read())"
    )

    async def run() -> None:
        async with harbour() as port, port.pod(HERE):
            port.folder.chmod(0o711)
            words = [str(port.crossing / "crossing.sock"), '{"peer": "7.1.n1"}\n{"hello": "daemon"}\n']
            other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *words, stdout=-1)
            said, _ = await asyncio.wait_for(other.communicate(), DEADLINE_S)
            assert b"Access denied: this is another user's job" in said

    asyncio.run(run())


def test_a_pod_that_cannot_have_a_socket_is_told_so() -> None:
    async def run() -> None:
        async with harbour() as port:
            port.gateway.expect(HERE, OWNER, 7)
            sockets = port.folder / "pods"
            sockets.rename(port.folder / "away")
            with pytest.raises(RefusedError, match="refused: the daemon cannot make a socket for it"):
                await port.gangway(HERE).dial({"as": "control"})
            (port.folder / "away").rename(sockets)
            await port.gangway(HERE).dial({"as": "control"})
            await asyncio.wait_for(port.gateway.attached(HERE), DEADLINE_S)

    asyncio.run(run())


# --- output that comes back ------------------------------------------------------------------------------------------


def order(path: Path, *, append: bool = False, generation: int = 1) -> Start:
    streams = {"stdout": str(path), "stderr": str(path)}
    batch = Batch(script="#!/bin/sh\n", cwd="/", env={}, append=append, umask=0o022, **streams)
    return Start(job=HERE.job_id, gen=generation, uid=OWNER.uid, gid=OWNER.gid, batch=batch)


def batch_of(told: Start | StartStep) -> Batch:
    assert isinstance(told, Start)
    assert told.batch is not None
    return told.batch


def returned_batch(returned: ReturnedOutput, given: Start, volumes: tuple[str, ...] = ()) -> Batch:
    return batch_of(returned.divert(OWNER, given, volumes))


async def until(good: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not good():
            await asyncio.sleep(0.01)


def test_output_of_a_pod_is_carried_to_the_submitters_file_while_it_grows() -> None:
    async def run() -> None:
        async with harbour() as port:
            wanted = port.folder / "job.out"
            wanted.write_text("of an earlier run\n")
            told = returned_batch(port.returned, order(wanted))
            assert told.stdout == told.stderr != str(wanted)
            assert wanted.read_text() == "", "emptied, as a start does"
            port.spool.mkdir()
            async with port.pod(HERE) as process:
                spooled = Path(told.stdout)
                spooled.write_text("one\n")
                await until(lambda: wanted.read_text() == "one\n")
                with spooled.open("a") as file:
                    file.write("x" * 3_000_000)
                process.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
            assert wanted.read_text() == "one\n" + "x" * 3_000_000, "all of it was there before the pod ended"

    asyncio.run(run())


def test_a_restarted_daemon_goes_on_where_the_file_ends(tmp_path: Path) -> None:
    wanted = tmp_path / "job.out"
    returned = ReturnedOutput(tmp_path / "output", "/spool")
    name = Path(returned_batch(returned, order(wanted)).stdout).name
    first = returned.delivery(HERE, name)
    first.write(b"abc")
    first._note(4)  # the next piece was announced, and half of it written
    os.write(first._fd, b"de")
    first.close()
    again = ReturnedOutput(tmp_path / "output", "/spool")
    again.divert(OWNER, order(wanted), ())  # said again: empties nothing
    second = again.delivery(HERE, name)
    assert second.position == 5
    second.write(b"fg")
    second.close()
    assert wanted.read_text() == "abcdefg"


def test_what_a_requeued_job_had_written_is_kept_when_it_appends(tmp_path: Path) -> None:
    wanted = tmp_path / "job.out"
    wanted.write_text("first\n")
    returned = ReturnedOutput(tmp_path / "output", "/spool")
    name = Path(returned_batch(returned, order(wanted, append=True, generation=2)).stdout).name
    delivery = returned.delivery(replace(HERE, generation=2), name)
    assert delivery.position == 0
    delivery.write(b"second\n")
    delivery.close()
    assert wanted.read_text() == "first\nsecond\n"


def test_a_pod_gets_only_files_that_its_own_start_was_given(tmp_path: Path) -> None:
    returned = ReturnedOutput(tmp_path / "output", "/spool")
    told = returned_batch(returned, order(tmp_path / "job.out"), ("/data/",))
    assert told.env == {"BIREME_VOLUMES": "/data"}
    name = Path(told.stdout).name
    for berth, asked in ((replace(HERE, generation=2), name), (HERE, "other"), (HERE, f"../7.1/{name}")):
        with pytest.raises(ValueError, match="has no output file"):
            returned.delivery(berth, asked)
    returned.forget(7, 1)
    with pytest.raises(ValueError, match="has no output file"):
        returned.delivery(HERE, name)


@pytest.mark.parametrize("path", ["/data/job.out", "/dev/null", "/data/a/../job.out"])
def test_what_stays_is_left_to_the_pod(tmp_path: Path, path: str) -> None:
    returned = ReturnedOutput(tmp_path / "output", "/spool")
    assert returned_batch(returned, order(Path(path)), ("/data/",)).stdout == path


def test_what_cannot_be_made_here_is_not_made_in_the_pod_either(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wanted = tmp_path / "file" / "job.out"
    told = returned_batch(ReturnedOutput(tmp_path / "output", "/spool"), order(wanted))
    with pytest.raises(OpenFileError, match=f"Could not open stdout file {wanted}: Not a directory"):
        batch_streams(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_files_are_opened_with_the_rights_of_the_submitter() -> None:
    nobody = Identity.of_user("nobody")

    def opened(path: str) -> int:
        return open_for(nobody, "stdout", path, lambda: open_output(path, "truncate", umask=0o027))

    with tempfile.TemporaryDirectory() as private, tempfile.TemporaryDirectory() as theirs:
        os.chown(theirs, nobody.uid, nobody.gid)
        with pytest.raises(OpenFileError, match=r"Could not open stdout file .*: Permission denied"):
            opened(f"{private}/x")
        os.close(opened(f"{theirs}/x"))
        made = Path(f"{theirs}/x").stat()
    assert (made.st_uid, made.st_mode & 0o777) == (nobody.uid, 0o640)


# --- input that is brought -------------------------------------------------------------------------------------------


def reading(path: Path | str, stdout: str = "/dev/null") -> Start:
    """An order to start a script that copies what it reads."""
    streams = {"stdin": str(path), "stdout": stdout, "stderr": "/dev/null"}
    batch = Batch(script="#!/bin/bash\ncat\n", env={}, cwd="/", umask=0o022, **streams)
    return Start(job=HERE.job_id, gen=1, uid=OWNER.uid, gid=OWNER.gid, alone=True, batch=batch)


def brought_batch(brought: BroughtInput, given: Start, owner: Owner = OWNER) -> Batch:
    return batch_of(brought.divert(owner, given, ()))


class Talk:
    """The daemon's connection to the agent in the pod."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, port: Harbour) -> AsyncIterator[Talk]:
        reader, writer = await asyncio.open_unix_connection(port.gateway.address(HERE).removeprefix("unix:"))
        talk = cls(reader, writer)
        talk.say({"hello": "daemon", "version": 1})
        await talk.expect("welcome")
        yield talk
        writer.close()

    def say(self, message: dict[str, Any] | Order) -> None:
        self._writer.write(msgspec.json.encode(message) + b"\n")

    async def expect(self, event: str) -> dict[str, Any]:
        """The next event, which must be this."""
        heard = json.loads(await asyncio.wait_for(self._reader.readline(), DEADLINE_S))
        assert heard["ev"] == event, heard
        return dict(heard)


async def ended(port: Harbour, message: Order) -> dict[str, Any]:
    """What the agent of the pod says of the script's end."""
    async with Talk.to(port) as talk:
        talk.say(message)
        await talk.expect("launched")
        return await talk.expect("batch_ended")


def test_a_script_reads_the_submitters_file() -> None:
    async def run() -> None:
        async with harbour() as port:
            source, output = port.folder / "in.txt", port.folder / "out.txt"
            source.write_bytes(b"x" * 2_000_000 + b"\nthe end\n")
            port.inbox.mkdir()
            async with port.pod(HERE):
                told = port.brought.divert(OWNER, reading(source, stdout=str(output)), ())
                assert Path(batch_of(told).stdin).parent == port.inbox
                assert (await ended(port, told))["status"]["code"] == 0
            assert output.read_bytes() == source.read_bytes()

    asyncio.run(run())


@asynccontextmanager
async def waiting_pod() -> AsyncIterator[tuple[Harbour, Talk]]:
    """A pod whose input does not come: the daemon is not ready to give it."""
    async with harbour() as port:
        port.gives = False
        (port.folder / "in.txt").touch()
        port.inbox.mkdir()
        async with port.pod(HERE), Talk.to(port) as talk:
            yield port, talk


TERMINATE = {"op": "terminate", "job": HERE.job_id, "gen": 1, "grace_s": 1000}


def test_a_script_that_waits_for_its_input_counts_as_started_and_ends_with_its_job() -> None:
    async def run() -> None:
        async with waiting_pod() as (port, talk):
            output = port.folder / "out"
            talk.say(port.brought.divert(OWNER, reading(port.folder / "in.txt", stdout=str(output)), ()))
            await talk.expect("launched")
            talk.say(TERMINATE)
            status = (await talk.expect("batch_ended"))["status"]
            assert (status["code"], status["signal"]) == (0, signal.SIGTERM)
            await talk.expect("cleared")
            assert not output.exists()

    asyncio.run(run())


@pytest.mark.parametrize("whole_job", [True, False], ids=["with its job", "alone"])
@pytest.mark.parametrize("grace_s", [1000, 0])
def test_a_step_that_waits_for_its_input_can_be_ended(whole_job: bool, grace_s: int) -> None:
    async def run() -> None:
        async with waiting_pod() as (port, talk):
            about = {"job": HERE.job_id, "gen": 1}
            talk.say({"op": "prepare", **about, "uid": OWNER.uid, "gid": OWNER.gid, "groups": [], "share": {}})
            await talk.expect("prepared")
            waits = StepTask(id=1, env={}, stdin=str(port.folder / "in.txt"))
            tasks = [StepTask(id=0, env={}, stdin="/dev/null"), waits]
            argv = ("bash", "-c", f"echo > {port.folder}/$$.ran; exec sleep 1000")
            env = {"PATH": os.environ["PATH"]}
            step = StartStep(job=HERE.job_id, gen=1, step=0, io_key="k", cwd="/", env=env, argv=argv, tasks=tasks)
            told = port.brought.divert(OWNER, step, ())
            assert isinstance(told, StartStep)
            talk.say(told)
            await until(Path(f"{told.tasks[1].stdin}.wanted").exists)
            await until(lambda: len(list(port.folder.glob("*.ran"))) == 1)
            order = {"op": "terminate"} if whole_job else {"op": "terminate_step", "step": 0}
            talk.say({**TERMINATE, **order, "grace_s": grace_s})
            await talk.expect("step_began")
            status = (await talk.expect("step_ended"))["status"]
            assert status["signal"] == (signal.SIGTERM if grace_s else signal.SIGKILL)
            if not whole_job:
                talk.say(TERMINATE)
            await talk.expect("cleared")
            assert len(list(port.folder.glob("*.ran"))) == 1

    asyncio.run(run())


def test_a_script_whose_input_went_away_does_not_start() -> None:
    async def run() -> None:
        async with harbour() as port:
            source = port.folder / "in.txt"
            source.touch()
            port.inbox.mkdir()
            told = port.brought.divert(OWNER, reading(source), ())
            source.unlink()
            fetcher = Fetcher(port.inbox, port.gangway(HERE).dial, patience_s=0.0)
            port.gateway.expect(HERE, OWNER, HERE.job_id)
            wanted = Path(batch_of(told).stdin)
            wanted.with_suffix(".wanted").touch()
            fetching = asyncio.create_task(fetcher.run())
            await until(wanted.with_suffix(".failed").exists)
            fetching.cancel()
            failed = wanted.with_suffix(".failed").read_text()
            assert failed == f"Could not open stdin file {source}: No such file or directory"
            assert not wanted.exists()

    asyncio.run(run())


def test_a_pod_gets_no_input_of_others(tmp_path: Path) -> None:
    (tmp_path / "in.txt").touch()
    brought = BroughtInput(tmp_path / "input", "/inbox")
    name = Path(brought_batch(brought, reading(tmp_path / "in.txt")).stdin).name
    os.close(brought.offer(HERE, name).fd)
    for berth, asked in ((replace(HERE, generation=2), name), (HERE, "other"), (HERE, f"../7.1/{name}")):
        with pytest.raises(ValueError, match="has no input file"):
            brought.offer(berth, asked)
    brought.forget(7, 1)
    with pytest.raises(ValueError, match="has no input file"):
        brought.offer(HERE, name)


def test_input_of_tasks_is_brought_too_and_that_of_the_pod_is_left(tmp_path: Path) -> None:
    (tmp_path / "in.0").touch()
    brought = BroughtInput(tmp_path / "input", "/inbox")
    paths = (f"{tmp_path}/in.0", "/data/in.1", "/dev/null", f"{tmp_path}/of-the-image")
    tasks = [StepTask(id=number, env={}, stdin=path) for number, path in enumerate(("", *paths))]
    step = StartStep(job=7, gen=1, step=3, env={}, cwd="/", tasks=tasks)
    told = brought.divert(OWNER, step, ("/data/",))
    assert isinstance(told, StartStep)
    assert told.tasks[0] == StepTask(id=0, env={})
    assert told.tasks[1].stdin.startswith("/inbox/3-")
    assert [task.stdin for task in told.tasks[2:]] == list(paths[1:])


def test_a_file_is_opened_once_however_many_tasks_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening costs a process of the daemon's size, and the loop waits for it."""
    opened: list[str] = []
    really = brought_module.open_for
    monkeypatch.setattr(brought_module, "open_for", lambda *how: opened.append(how[2]) or really(*how))
    here, missing = f"{tmp_path}/in", f"{tmp_path}/of-the-image"
    Path(here).touch()
    tasks = [StepTask(id=number, env={}, stdin=missing if number % 2 else here) for number in range(10)]
    step = StartStep(job=7, gen=1, step=3, env={}, cwd="/", tasks=tasks)
    first = BroughtInput(tmp_path / "input", "/inbox").divert(OWNER, step, ())
    assert sorted(opened) == [here, missing]
    again = BroughtInput(tmp_path / "input", "/inbox").divert(OWNER, step, ())
    assert again == first
    assert sorted(opened) == [here, missing, missing], "what is kept of an order says all about it when it is repeated"
    assert isinstance(first, StartStep)
    assert [task.stdin == missing for task in first.tasks] == [False, True] * 5


def test_input_that_cannot_be_brought_is_told(tmp_path: Path) -> None:
    brought = BroughtInput(tmp_path / "input", "/inbox")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MOST_BYTES + MIB)
    os.mkfifo(tmp_path / "fifo")
    for name, why in (
        ("folder", "Is a directory"),
        ("large", "it has 1025 MiB, and at most 1024 MiB are brought into a pod; it must lie on a volume"),
        ("fifo", "only regular files can be brought into a pod"),
        ("large/in", "Not a directory"),
    ):
        told = brought_batch(brought, reading(tmp_path / name))
        with pytest.raises(OpenFileError, match=f"Could not open stdin file {tmp_path / name}: {why}"):
            batch_streams(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_nothing_is_read_that_the_submitter_may_not_read(tmp_path: Path) -> None:
    nobody = Identity.of_user("nobody")
    private = tmp_path / "in.txt"
    private.touch(mode=0o600)
    owner = Owner(uid=nobody.uid, gid=nobody.gid, user="nobody")
    told = brought_batch(BroughtInput(tmp_path / "input", "/inbox"), reading(private), owner)
    with pytest.raises(OpenFileError, match=f"Could not open stdin file {private}: Permission denied"):
        batch_streams(told)
