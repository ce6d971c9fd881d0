"""Gatherers at the daemon's door: what is kept and told, a full disk, a daemon that comes back, who may not enter."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.telemetry_door import Cluster, Disk, Peer, kept_up_to

from bireme.daemon.telemetry import door
from bireme.daemon.telemetry import keeper as keeping
from bireme.daemon.telemetry.door import Door
from bireme.daemon.telemetry.keeper import TelemetryKeeper
from bireme.gather import messages as m
from bireme.ports import Holding, SeriesError


class Site:
    """A daemon's side of telemetry in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "telemetry.sock")
        self.disk, self.cluster = Disk(), Cluster()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TelemetryKeeper]:
        keeper = TelemetryKeeper(self.cluster, lambda: self.disk, lambda: 10.0)  # type: ignore[arg-type,return-value]
        keeper.begin()
        its_door = Door(self.path, keeper)
        await its_door.begin()
        try:
            yield keeper
        finally:
            await its_door.close()
            await keeper.close()

    async def connect(self) -> Peer:
        return Peer(*await asyncio.open_unix_connection(self.path))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(keeping, "_FLUSH_S", 0.01)
    monkeypatch.setattr(keeping, "_AGAIN_S", 0.01)
    return Site(tmp_path)


def a_round(no: int, value: int = 50) -> m.Round:
    frame = m.Frame(about="gpu", node="n1", ids=["GPU-1"], columns={"gpu_util": [value]})
    return m.Round(no=no, at=1_000_000.0 + 10 * no, interval_s=10.0, frames=[frame])


def test_rounds_are_kept_and_that_is_told(site: Site) -> None:
    async def story() -> None:
        async with site.open():
            peer = await site.connect()
            peer.say(m.Hello(id="g", machine="n1"))
            welcome = await peer.hear()
            assert isinstance(welcome, m.Welcome)
            assert (welcome.kept, welcome.interval_s) == (0, 10.0)
            peer.say(a_round(1))
            peer.say(a_round(2))
            await kept_up_to(peer, 2)
        assert [sample.at for sample in site.disk.samples] == [1_000_010.0, 1_000_020.0]

    asyncio.run(story())


def test_a_daemon_that_comes_back_says_what_it_has(site: Site) -> None:
    async def story() -> None:
        async with site.open():
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            await peer.hear()
            peer.say(a_round(7))
            await kept_up_to(peer, 7)
        async with site.open():
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            welcome = await peer.hear()
            assert isinstance(welcome, m.Welcome)
            assert welcome.kept == 7
            peer.say(a_round(7, value=99))
            peer.say(a_round(8))
            await kept_up_to(peer, 8)
        assert [float(sample.values["gpu_util"][0]) for sample in site.disk.samples] == [50.0, 50.0], "7 counts once"

    asyncio.run(story())


def test_a_full_disk_leaves_rounds_with_their_gatherers(site: Site) -> None:
    async def story() -> None:
        async with site.open() as keeper:
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            await peer.hear()
            site.disk.full = True
            while not keeper.problem:
                await asyncio.sleep(0.005)
            assert "No space left" in keeper.problem
            for no in range(1, 4):
                peer.say(a_round(no))
            while site.disk.taken.get("g", 0) < 1:
                await asyncio.sleep(0.005)
            assert site.disk.taken["g"] == 1, "what was on its way, and no more"
            site.disk.full = False
            await kept_up_to(peer, 3)
            assert not keeper.problem

    asyncio.run(story())


def test_a_fault_that_nobody_expected_is_told_and_rounds_are_kept_after_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def overflows() -> dict[str, int]:
        raise OverflowError("Python int too large to convert to SQLite INTEGER")

    async def story() -> None:
        async with site.open() as keeper:
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            await peer.hear()
            with monkeypatch.context() as patch:
                patch.setattr(site.disk, "flush", overflows)
                while not keeper.problem:
                    await asyncio.sleep(0.005)
                assert "OverflowError: Python int too large" in keeper.problem
            peer.say(a_round(1))
            await kept_up_to(peer, 1)
            assert not keeper.problem

    asyncio.run(story())
    assert [record.exc_info is not None for record in caplog.records if "not kept" in record.getMessage()] == [True]


def test_a_look_at_what_waits_that_fails_costs_no_round(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise KeyError("n9")

    async def story() -> None:
        async with site.open() as keeper:
            with monkeypatch.context() as patch:
                patch.setattr(keeper._trail, "look", fails)
                while "KeyError" not in keeper.problem:
                    await asyncio.sleep(0)
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            await peer.hear()
            peer.say(a_round(1))
            await kept_up_to(peer, 1)
            assert not any(work.done() for work in keeper._work)

    asyncio.run(story())


def test_the_socket_is_private_and_goes_with_the_daemon(site: Site) -> None:
    async def story() -> None:
        async with site.open():
            assert stat.S_IMODE(os.stat(site.path).st_mode) == 0o600
        assert not os.path.exists(site.path)

    asyncio.run(story())


@pytest.mark.parametrize(
    "said", [b"\x00\x00\x00\x02hi", b"\xff\xff\xff\xff", m.encode(a_round(1))], ids=["noise", "endless", "no hello"]
)
def test_who_speaks_out_of_turn_is_cut_off_and_others_are_heard(site: Site, said: bytes) -> None:
    async def story() -> None:
        async with site.open():
            rude = await site.connect()
            rude._writer.write(said)
            assert await rude.is_cut_off()
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            assert isinstance(await peer.hear(), m.Welcome)

    asyncio.run(story())


def odd_round(**fields: Any) -> m.Round:
    plain: dict[str, Any] = {"no": 1, "at": 1_000_000.0, "interval_s": 10.0, "frames": []}
    return m.Round(**plain | fields)


@pytest.mark.parametrize(
    "said",
    [
        odd_round(no=2**63),
        odd_round(at=float("inf")),
        odd_round(interval_s=float("nan")),
        odd_round(happenings=[m.Happening(at=0.0, node="n1", kind="xid", code=2**40)]),
        odd_round(frames=[m.Frame(about="gpu", node="n1\n", ids=[], columns={})]),
        odd_round(frames=[m.Frame(about="task", node="n1", ids=["1.1.0.0"] * 20_001, columns={})]),
        m.Devices(devices=[m.Device(uuid="x" * 300, node="n1", index=0)]),
        m.Hello(id="g"),
    ],
    ids=["number", "time", "interval", "code", "name", "many", "device", "second hello"],
)
def test_what_no_gatherer_says_costs_who_says_it_the_connection(site: Site, said: m.Told) -> None:
    async def story() -> None:
        async with site.open() as keeper:
            rude = await site.connect()
            rude.say(m.Hello(id="rude"))
            await rude.hear()
            rude.say(said)
            assert await rude.is_over()
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            await peer.hear()
            peer.say(a_round(1))
            await kept_up_to(peer, 1)
            assert not keeper.problem

    asyncio.run(story())


@pytest.mark.parametrize("id", ["n1/f", "", "x" * 300, "a\nb"])
def test_who_says_an_id_that_cannot_be_is_not_let_in(site: Site, id: str) -> None:
    async def story() -> None:
        async with site.open():
            rude = await site.connect()
            rude.say(m.Hello(id=id))
            assert await rude.is_cut_off()

    asyncio.run(story())


def test_gatherers_of_a_machine_are_counted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_IDS_AT_MOST", 2)

    async def story() -> None:
        async with site.open():
            for id, is_let_in in (("a", True), ("b", True), ("c", False), ("a", True)):
                peer = await site.connect()
                peer.say(m.Hello(id=id))
                if is_let_in:
                    assert isinstance(await peer.hear(), m.Welcome)
                else:
                    assert await peer.is_cut_off()

    asyncio.run(story())


def test_a_fault_that_nobody_expected_costs_one_conversation(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object) -> None:
        raise KeyError("n9")

    async def story() -> None:
        async with site.open() as keeper:
            first = await site.connect()
            first.say(m.Hello(id="g"))
            await first.hear()
            with monkeypatch.context() as patch:
                patch.setattr(keeper, "hear", fails)
                first.say(a_round(1))
                assert await first.is_over()
            again = await site.connect()
            again.say(m.Hello(id="g"))
            await again.hear()
            again.say(a_round(1))
            await kept_up_to(again, 1)

    asyncio.run(story())
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == "a gatherer (g) is cut off: KeyError: 'n9'"


def test_while_nothing_can_be_opened_nothing_is_gathered_up(site: Site) -> None:
    def refuses() -> Any:
        raise SeriesError("cannot open series.db")

    async def story() -> None:
        keeper = TelemetryKeeper(site.cluster, refuses, lambda: 10.0)  # type: ignore[arg-type]
        keeper.begin()
        while not keeper.problem:
            await asyncio.sleep(0.005)
        for job_id in range(100):
            keeper._change([Holding(job_id, 1, "n1", "GPU-1", False, 0.0, None)])
        assert keeper._unheld == []
        await keeper.close()

    asyncio.run(story())


def test_gpus_that_a_gatherer_knows_are_their_jobs_from_the_start(site: Site) -> None:
    world = site.cluster.world
    world.submit("train", gpus=1)
    world.settle()
    (node,) = world.state.nodes.values()
    job = next(iter(world.state.jobs.values()))

    async def story() -> None:
        async with site.open() as keeper:
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            await peer.hear()
            peer.say(m.Devices(devices=[m.Device(uuid=f"GPU-{i}", node=node.name, index=i, minor=i) for i in (0, 1)]))
            while not (await keeper.picture()).owners:
                await asyncio.sleep(0.005)
        (holding,) = site.disk.held.values()
        assert (holding.job_id, holding.start, holding.end) == (job.id, 1_000_000.0, None)

    (pool,) = node.config.gres
    devices = tuple(replace(device, file=f"/dev/nvidia{device.index}") for device in pool.devices)
    node.config = replace(node.config, gres=(replace(pool, devices=devices),))
    asyncio.run(story())


def test_a_round_that_always_fails_is_left_out_and_what_comes_after_it_is_kept(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    frame = m.Frame(about="gpu", node="n1", ids=["GPU-1", "GPU-2"], columns={"gpu_util": [1]})
    bad = m.Round(no=2, at=1_000_020.0, interval_s=10.0, frames=[frame])

    async def story() -> None:
        async with site.open():
            cut_off = 0
            while True:
                peer = await site.connect()
                peer.say(m.Hello(id="g"))
                await peer.hear()
                for told in (a_round(1), bad, a_round(3)):
                    peer.say(told)
                try:
                    await kept_up_to(peer, 3)
                    break
                except asyncio.IncompleteReadError:
                    cut_off += 1
            assert cut_off == 2, "it is tried again, and not for ever"

    asyncio.run(story())
    assert [sample.at for sample in site.disk.samples] == [1_000_010.0, 1_000_030.0]
    assert "round 2 of gatherer g is left out: ProtocolError: 1 values of gpu_util for 2 subjects" in caplog.text


def test_a_full_disk_is_no_rounds_fault(site: Site) -> None:
    async def story() -> None:
        async with site.open() as keeper:
            peer = await site.connect()
            peer.say(m.Hello(id="g"))
            await peer.hear()
            body = m.encode(a_round(1))[4:]
            for _ in range(10):
                with pytest.raises(SeriesError):
                    async with keeper.patience_with("g", body):
                        raise SeriesError("full")
            peer.say(a_round(1))
            await kept_up_to(peer, 1)
        assert len(site.disk.samples) == 1

    asyncio.run(story())


def test_a_gpu_that_two_nodes_tell_of_is_on_the_page_of_both(site: Site) -> None:
    async def story() -> set[tuple[str, str, float]]:
        async with site.open() as keeper:
            for no, node in enumerate(("n1", "n2")):
                peer = await site.connect()
                peer.say(m.Hello(id=f"of {node}"))
                peer.say(m.Devices(devices=[m.Device(uuid="GPU-1", node=node, index=0)]))
                frame = m.Frame(about="gpu", node=node, ids=["GPU-1"], columns={"gpu_util": [no]})
                now = site.cluster.clock.now()
                peer.say(m.Round(no=1, at=now, sent=now, interval_s=10.0, frames=[frame]))
                await kept_up_to(peer, 1)
            return {(gpu.node, gpu.uuid, gpu.values["gpu_util"]) for gpu in (await keeper.measured()).gpus}

    assert asyncio.run(story()) == {("n1", "GPU-1", 0.0), ("n2", "GPU-1", 1.0)}
