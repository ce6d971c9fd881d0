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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bireme.agent.gangway import Gangway, RefusedError
from bireme.core.model.jobs import Owner
from bireme.engines.kubernetes.gateway import Berth, Gateway

certificate = pytest.importorskip("bireme.engines.kubernetes.certificate", reason="needs the kubernetes extra")

DEADLINE_S = 30.0
HERE = Berth(7, 1, "n1")
OWNER = Owner(uid=os.getuid(), gid=os.getgid(), user="ada")


class Harbour:
    """A gateway, and pods that may call it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.admitted: list[tuple[Owner, int]] = []
        pem = folder / "gateway.pem"
        self.authority = folder / "ca.pem"
        self.authority.write_text(certificate.ensure_certificate(pem))
        self.gateway = Gateway(folder / "pods", b"secret", pem, self.admit)
        self.port = 0

    def admit(self, sock: socket.socket, owner: Owner, job_id: int) -> None:
        """Stands for the API: says whom it takes the caller for."""
        self.admitted.append((owner, job_id))
        sock.sendall(f"hello {owner.user}\n".encode())
        sock.close()

    def gangway(self, berth: Berth, *, token: str | None = None) -> Gangway:
        home = self.folder / "home" / berth.node
        home.mkdir(parents=True, exist_ok=True)
        token_file = home / "token"
        token_file.write_text(token or self.gateway.token(berth))
        return Gangway("127.0.0.1", self.port, self.authority, token_file, home, berth.node, ("n1", "n2"))

    def pod_settings(self, berth: Berth) -> Path:
        gangway = self.gangway(berth)
        file = gangway.home / "pod.json"
        settings = {"node": berth.node, "home": str(gangway.home), "host": "127.0.0.1", "port": self.port}
        settings |= {"authority": str(self.authority), "token_file": str(gangway.token_file), "peers": ["n1", "n2"]}
        file.write_text(json.dumps(settings))
        return file

    @asynccontextmanager
    async def pod(self, berth: Berth) -> AsyncIterator[asyncio.subprocess.Process]:
        """The real thing: `python -m bireme.agent.pod`."""
        self.gateway.expect(berth, OWNER)
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
            path = str(port.gangway(HERE).home / "nodes" / "n2.sock")
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
                await port.gangway(HERE, token=token)._dial({"as": "control"})

    asyncio.run(run())


def test_a_pod_cannot_answer_for_another_pod() -> None:
    async def run() -> None:
        other = Berth(8, 1, "n1")
        async with harbour() as port:
            port.gateway.expect(HERE, OWNER)
            port.gateway.expect(other, OWNER)
            reader, _ = await port.gangway(HERE)._dial({"as": "control"})
            wanted = asyncio.create_task(talk(port.gateway.address(HERE).removeprefix("unix:")))
            number = json.loads(await asyncio.wait_for(reader.readline(), DEADLINE_S))["carry"]
            with pytest.raises(RefusedError, match="nobody waits"):
                await port.gangway(other)._dial({"as": "carry", "id": number})
            with pytest.raises(RefusedError, match="is expected"):
                await port.gangway(other)._dial({"as": "stream", "node": "n2"})
            wanted.cancel()

    asyncio.run(run())
