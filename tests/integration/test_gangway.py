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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bireme.agent.batch import open_files
from bireme.agent.gangway import Gangway, RefusedError
from bireme.agent.identity import Identity
from bireme.agent.output import OpenFileError
from bireme.core.model.jobs import Owner
from bireme.engines.kubernetes.gateway import Berth, Delivery, Gateway
from bireme.engines.kubernetes.returned import ReturnedOutput, open_for

certificate = pytest.importorskip("bireme.engines.kubernetes.certificate", reason="needs the kubernetes extra")

DEADLINE_S = 30.0
HERE = Berth(7, 1, "n1")
PEERS = ("7.1.n1", "7.1.n2")
OWNER = Owner(uid=os.getuid(), gid=os.getgid(), user="ada")


class Harbour:
    """A gateway, and pods that may call it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.admitted: list[tuple[Owner, int]] = []
        pem = folder / "gateway.pem"
        self.authority = folder / "ca.pem"
        self.authority.write_text(certificate.ensure_certificate(pem))
        self.gateway = Gateway(folder / "pods", b"secret", pem, self.admit, self.deliver)
        self.spool = folder / "spool"
        self.returned = ReturnedOutput(folder / "output", (), str(self.spool))
        self.port = 0

    def admit(self, sock: socket.socket, owner: Owner, job_id: int) -> None:
        """Stands for the API: says whom it takes the caller for."""
        self.admitted.append((owner, job_id))
        sock.sendall(f"hello {owner.user}\n".encode())
        sock.close()

    def deliver(self, berth: Berth, name: str) -> Delivery:
        return self.returned.delivery(berth, name)

    def gangway(self, berth: Berth, *, token: str | None = None) -> Gangway:
        home = self.folder / "home" / berth.node
        home.mkdir(parents=True, exist_ok=True)
        token_file = home / "token"
        token_file.write_text(token or self.gateway.token(berth))
        return Gangway("127.0.0.1", self.port, self.authority, token_file, home, berth.node, PEERS)

    def pod_settings(self, berth: Berth) -> Path:
        gangway = self.gangway(berth)
        file = gangway.home / "pod.json"
        settings = {"node": berth.node, "home": str(gangway.home), "host": "127.0.0.1", "port": self.port}
        settings |= {"authority": str(self.authority), "token_file": str(gangway.token_file), "peers": PEERS}
        settings |= {"spool": str(self.spool)}
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
async def harbour() -> AsyncIterator[Harbour]:
    folder = Path(tempfile.mkdtemp(prefix="gw"))  # short: socket addresses hold 107 bytes
    made = Harbour(folder)
    made.port = await made.gateway.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.gateway.stop()
        shutil.rmtree(folder)


async def talk(path: str, *words: dict[str, object]) -> dict[str, object]:
    """The first line that comes back on this unix socket."""
    reader, writer = await asyncio.open_unix_connection(path)
    for word in words:
        writer.write(json.dumps(word).encode() + b"\n")
    answer = await asyncio.wait_for(reader.readline(), DEADLINE_S)
    writer.close()
    return json.loads(answer)


def test_the_agent_of_a_pod_is_reached_like_one_of_this_machine() -> None:
    async def run() -> None:
        async with harbour() as port, port.pod(HERE):
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
            path = str(port.gangway(HERE).home / "nodes" / "7.1.n2.sock")
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"hello": "daemon"}\n')
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


# --- output that comes back ------------------------------------------------------------------------------------------


def order(path: Path, *, append: bool = False, generation: int = 1) -> dict[str, Any]:
    batch = {"stdout": str(path), "stderr": str(path), "append": append, "umask": 0o022, "env": {}}
    return {"op": "start", "job": HERE.job_id, "gen": generation, "batch": batch}


async def until(good: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not good():
            await asyncio.sleep(0.01)


def test_output_of_a_pod_is_carried_to_the_submitters_file_while_it_grows() -> None:
    async def run() -> None:
        async with harbour() as port:
            wanted = port.folder / "job.out"
            wanted.write_text("of an earlier run\n")
            told = port.returned.divert(OWNER, order(wanted))["batch"]
            assert told["stdout"] == told["stderr"] != str(wanted)
            assert wanted.read_text() == "", "emptied, as a start does"
            port.spool.mkdir()
            async with port.pod(HERE) as process:
                spooled = Path(told["stdout"])
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
    returned = ReturnedOutput(tmp_path / "output", (), "/spool")
    name = Path(returned.divert(OWNER, order(wanted))["batch"]["stdout"]).name
    first = returned.delivery(HERE, name)
    first.write(b"abc")
    first._note(4)  # the next piece was announced, and half of it written
    os.write(first._fd, b"de")
    first.close()
    again = ReturnedOutput(tmp_path / "output", (), "/spool")
    again.divert(OWNER, order(wanted))  # said again: empties nothing
    second = again.delivery(HERE, name)
    assert second.position == 5
    second.write(b"fg")
    second.close()
    assert wanted.read_text() == "abcdefg"


def test_what_a_requeued_job_had_written_is_kept_when_it_appends(tmp_path: Path) -> None:
    wanted = tmp_path / "job.out"
    wanted.write_text("first\n")
    returned = ReturnedOutput(tmp_path / "output", (), "/spool")
    name = Path(returned.divert(OWNER, order(wanted, append=True, generation=2))["batch"]["stdout"]).name
    delivery = returned.delivery(replace(HERE, generation=2), name)
    assert delivery.position == 0
    delivery.write(b"second\n")
    delivery.close()
    assert wanted.read_text() == "first\nsecond\n"


def test_a_pod_gets_only_files_that_its_own_start_was_given(tmp_path: Path) -> None:
    returned = ReturnedOutput(tmp_path / "output", ("/data",), "/spool")
    told = returned.divert(OWNER, order(tmp_path / "job.out"))["batch"]
    assert told["env"] == {"BIREME_VOLUMES": "/data"}
    name = Path(told["stdout"]).name
    for berth, asked in ((replace(HERE, generation=2), name), (HERE, "other"), (HERE, f"../7.1/{name}")):
        with pytest.raises(ValueError, match="has no output file"):
            returned.delivery(berth, asked)
    returned.forget(7, 1)
    with pytest.raises(ValueError, match="has no output file"):
        returned.delivery(HERE, name)


@pytest.mark.parametrize("path", ["/data/job.out", "/dev/null", "/data/a/../job.out"])
def test_what_stays_is_left_to_the_pod(tmp_path: Path, path: str) -> None:
    returned = ReturnedOutput(tmp_path / "output", ("/data/",), "/spool")
    assert returned.divert(OWNER, order(Path(path)))["batch"]["stdout"] == path


def test_what_cannot_be_made_here_is_not_made_in_the_pod_either(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wanted = tmp_path / "file" / "job.out"
    told = ReturnedOutput(tmp_path / "output", (), "/spool").divert(OWNER, order(wanted))["batch"]
    with pytest.raises(OpenFileError, match=f"Could not open stdout file {wanted}: Not a directory"):
        open_files(told, None, make_folders=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_files_are_opened_with_the_rights_of_the_submitter() -> None:
    nobody = Identity.of_user("nobody")
    with tempfile.TemporaryDirectory() as private, tempfile.TemporaryDirectory() as theirs:
        os.chown(theirs, nobody.uid, nobody.gid)
        with pytest.raises(OpenFileError, match="Permission denied"):
            open_for(nobody, f"{private}/x", "truncate", 0o022)
        os.close(open_for(nobody, f"{theirs}/x", "truncate", 0o027))
        made = Path(f"{theirs}/x").stat()
    assert (made.st_uid, made.st_mode & 0o777) == (nobody.uid, 0o640)
