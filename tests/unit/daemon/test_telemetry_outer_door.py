"""Nodes of other machines at the daemon's door: TLS, tokens, what they may say of whom, and who knocks too often."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.telemetry_door import Cluster, Disk, Peer, kept_up_to

from bireme.core.telemetry.subjects import Subject
from bireme.daemon.telemetry import keeper as keeping
from bireme.daemon.telemetry import outer_door
from bireme.daemon.telemetry.keeper import TelemetryKeeper
from bireme.daemon.telemetry.naming import Naming
from bireme.daemon.telemetry.outer_door import OuterDoor
from bireme.daemon.telemetry.premises import Premises
from bireme.daemon.telemetry.tokens import TokenError, Tokens
from bireme.gather import messages as m
from bireme.gather.dialling import Pass, PassError, host_and_port, pinned, read_pass
from bireme.ports import HistoryQuery

ID, OTHER_ID = "a" * 32, "b" * 32


class Past:
    """A history of one job that ended."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def finished(self, query: HistoryQuery) -> list[dict[str, Any]]:
        return [record for record in self.records if (record["job_id"], None) in query.jobs]


class Site:
    """A daemon's side of telemetry that listens on loopback."""

    def __init__(self, folder: Path) -> None:
        self.premises = Premises.at(str(folder / "telemetry"))
        self.disk, self.cluster, self.past = Disk(), Cluster(), Past()
        self.node = next(iter(self.cluster.state.nodes))
        self.port = 0
        self.numbered, self.behind = True, ""
        self.pods: dict[str, tuple[int, int, str]] = {}
        self.looks: Counter[str] = Counter()

    def start_of_pod(self, uid: str) -> tuple[int, int, str] | None:
        self.looks[uid] += 1
        return self.pods.get(uid)

    def out_of_date(self, what: str) -> str:
        """As the queue of another scheduler."""
        self.looks[what] += 1
        return self.behind

    async def looked(self, what: str) -> None:
        """Until it has been looked at twice more: who asks waits for an answer then."""
        enough = self.looks[what] + 2
        while self.looks[what] < enough:
            await asyncio.sleep(0.005)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OuterDoor]:
        keeper = TelemetryKeeper(self.cluster, lambda: self.disk, lambda: 10.0)  # type: ignore[arg-type,return-value]
        keeper.begin()
        queue: Any = self if self.numbered else None
        naming = Naming(lambda: self.cluster.state, self.past, queue=queue, pods=self)  # type: ignore[arg-type]
        door = OuterDoor(self.premises.certificate_file, self.premises.tokens, keeper, naming)
        self.port = await door.begin("127.0.0.1", 0)
        try:
            yield door
        finally:
            await door.close()
            await keeper.close()

    async def connect(self) -> Peer:
        context = pinned(self.premises.pass_for("*", "127.0.0.1:1").certificate)
        return Peer(*await asyncio.open_connection("127.0.0.1", self.port, ssl=context))

    async def greeted(self, **hello: Any) -> Peer:
        peer = await self.connect()
        peer.say(self.hello(**hello))
        assert isinstance(await peer.hear(), m.Welcome)
        return peer

    def hello(self, **other: Any) -> m.Hello:
        token = self.premises.tokens.made_for(self.node)
        return m.Hello(**{"id": ID, "machine": self.node, "token": token, **other})

    def a_round(self, no: int, *, late_s: float = 0.0, ids: Sequence[str] = (), **frame: Any) -> m.Round:
        told = {"about": "task" if ids else "gpu", "node": self.node, "ids": list(ids) or ["GPU-1"], **frame}
        values: list[m.Value] = [50] * len(told["ids"])
        columns = {"memory" if told["about"] == "task" else "gpu_util": values}
        now = self.cluster.clock.now()
        frames = [m.Frame(**{"columns": columns, **told})]
        return m.Round(no=no, at=now - late_s, sent=now, interval_s=10.0, frames=frames)

    @property
    def subjects(self) -> list[Subject]:
        return [subject for sample in self.disk.samples for subject in sample.subjects]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(keeping, "_FLUSH_S", 0.01)
    monkeypatch.setattr(outer_door, "_UNKNOWN_S", 0.05)
    monkeypatch.setattr(outer_door, "_UNKNOWN_POD_S", 0.05)
    monkeypatch.setattr(outer_door, "_LOOK_S", 0.01)
    return Site(tmp_path)


def test_rounds_of_a_node_are_kept_under_the_daemons_own_name_of_the_job(site: Site) -> None:
    job = site.cluster.world.submit("train", gpus=1)
    site.cluster.world.settle()

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(site.a_round(1))
            peer.say(site.a_round(2, ids=[f"{job}.0.-5.0", f"{job}.0.0.1"]))
            await kept_up_to(peer, 2)

    asyncio.run(story())
    assert site.subjects == [
        Subject("gpu", site.node, "GPU-1"),
        Subject("task", site.node, f"{job}.1.-5.0"),
        Subject("task", site.node, f"{job}.1.0.1"),
    ]


def test_what_young_tasks_and_those_that_are_over_used_comes_through(site: Site) -> None:
    """Also where another subject of the frame is nobody's."""
    job = site.cluster.world.submit("train")
    site.cluster.world.settle()
    ids = ["77.0.0.0", f"{job}.0.0.0", f"{job}.0.0.1"]
    read: dict[str, list[m.Value]] = {"io_read": [0, 20_480, 10_240]}

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(site.a_round(1, late_s=1.0, ids=ids, columns=read, ages=[1.0, 5.0, None]))
            peer.say(site.a_round(2, ids=ids, columns=read, ended=True))
            await kept_up_to(peer, 2)

    asyncio.run(story())
    first, _, last = site.disk.samples
    assert [subject.id for subject in first.subjects] == [f"{job}.1.0.0", f"{job}.1.0.1"]
    assert first.values["io_read"].tolist() == pytest.approx([2.0, math.nan], nan_ok=True)
    assert last.values["io_read_total"].tolist() == [20.0, 10.0]
    assert last.at == first.at


def test_a_round_that_comes_twice_counts_once_also_after_a_restart(site: Site) -> None:
    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(site.a_round(3))
            await kept_up_to(peer, 3)
        async with site.open():
            peer = await site.connect()
            peer.say(site.hello())
            welcome = await peer.hear()
            assert isinstance(welcome, m.Welcome)
            assert welcome.kept == 3
            peer.say(site.a_round(3))
            peer.say(site.a_round(4))
            await kept_up_to(peer, 4)

    asyncio.run(story())
    assert len(site.disk.samples) == 2


def refusal_of(site: Site, hello: m.Told) -> str:
    async def story() -> str:
        async with site.open():
            peer = await site.connect()
            peer.say(hello)
            said = await peer.hear()
            assert isinstance(said, m.Refused)
            assert await peer.is_cut_off()
            return said.why

    return asyncio.run(story())


def test_who_has_no_token_or_a_wrong_one_is_refused(site: Site) -> None:
    others = Tokens(b"x" * 32).made_for(site.node)
    longer = site.premises.tokens.made_for("other").replace("other", f"other,{site.node}")
    for token in ("", "nonsense", f"{site.node}:é", others, longer, site.premises.tokens.made_for(site.node)[:-1]):
        assert "not a token of this cluster" in refusal_of(site, site.hello(token=token))
    assert site.disk.samples == []


def test_a_token_is_for_its_nodes_alone(site: Site) -> None:
    token = site.premises.tokens.made_for("elsewhere[1-8]")
    assert "is not for node" in refusal_of(site, site.hello(token=token))
    assert "is no node" in refusal_of(site, site.hello(token=site.premises.tokens.made_for("*"), machine="elsewhere1"))


def test_one_token_may_be_for_all_nodes(site: Site) -> None:
    async def story() -> None:
        async with site.open():
            await site.greeted(token=site.premises.tokens.made_for("*"))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (m.Devices(devices=[]), "not a proper hello"),
        (m.Hello(id="../../etc", machine="n1"), "not a proper hello"),
    ],
)
def test_the_first_word_is_a_hello(site: Site, hello: m.Told, says: str) -> None:
    assert says in refusal_of(site, hello)


def test_a_newer_protocol_is_told_to_wait_for_its_daemon(site: Site) -> None:
    assert "update the daemon first" in refusal_of(site, site.hello(version=m.VERSION + 1))


def test_who_expects_another_certificate_says_nothing(site: Site, tmp_path: Path) -> None:
    other = Premises.at(str(tmp_path / "other")).pass_for("*", "127.0.0.1:1").certificate

    async def story() -> None:
        async with site.open():
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection("127.0.0.1", site.port, ssl=pinned(other))

    asyncio.run(story())


def cut_off_after(site: Site, told: m.Told) -> str:
    async def story() -> str:
        async with site.open():
            peer = await site.greeted()
            peer.say(told)
            said = await peer.hear()
            while not isinstance(said, m.Refused):
                said = await peer.hear()
            assert await peer.is_cut_off()
            return said.why

    return asyncio.run(story())


def test_a_node_that_speaks_of_others_is_cut_off(site: Site) -> None:
    gpu = m.Device(uuid="GPU-1", node="elsewhere", index=0)
    for told in (
        site.a_round(1, node="elsewhere"),
        m.Devices(devices=[gpu]),
        m.Round(
            no=1,
            at=1.0,
            sent=1.0,
            interval_s=1,
            frames=[],
            happenings=[m.Happening(at=1, node="elsewhere", kind="xid")],
        ),
    ):
        assert "speaks of node 'elsewhere'" in cut_off_after(site, told)
    assert "another machine as a whole" in cut_off_after(site, site.a_round(1, about="node", ids=["elsewhere"]))
    assert site.disk.samples == []


@pytest.mark.parametrize("task", ["7", "7.1.0.0", "x.0.0.0", "7.0.0.0@a b", "-1.0.0.0", "7.0.0.0.0", "pod-xyz.0.0.0"])
def test_a_task_has_the_name_of_a_task(site: Site, task: str) -> None:
    assert "is no task" in cut_off_after(site, site.a_round(1, ids=[task]))


def test_what_is_too_much_cuts_off(site: Site) -> None:
    assert "more subjects" in cut_off_after(site, site.a_round(1, ids=["7.0.0.0"] * 20_001))
    assert "GPUs on one machine" in cut_off_after(site, site.a_round(1, about="gpu", ids=["GPU"] * 513))
    assert "too long" in cut_off_after(site, site.a_round(1, about="gpu", ids=["G" * 300]))
    long = m.Frame(about="gpu", node=site.node, ids=["G"], columns={"x" * 5_000_000: [1]})
    told = m.Round(no=1, at=1.0, sent=1.0, interval_s=1, frames=[long])
    assert "longer than" in cut_off_after(site, told)


@pytest.mark.parametrize("no", [0, 2**40, 2**63, 2**64 - 1])
def test_a_round_has_a_number_that_can_be_counted(site: Site, no: int) -> None:
    assert "without its number" in cut_off_after(site, site.a_round(no))


def test_names_can_be_shown(site: Site) -> None:
    assert "cannot be shown" in cut_off_after(site, site.a_round(1, about="gpu", ids=["GPU\x1b[2J"]))


@pytest.mark.parametrize("what", [{"at": float("nan")}, {"at": 1e300}, {"pid": 2**63}, {"code": 2**63}, {"pid": -1}])
def test_a_happening_has_a_time_and_a_process_that_can_be(site: Site, what: dict[str, Any]) -> None:
    happening = m.Happening(**({"at": 1.0, "node": site.node, "kind": "xid"} | what))
    told = m.Round(no=1, at=1.0, sent=1.0, interval_s=1, frames=[], happenings=[happening])
    assert "a happening without" in cut_off_after(site, told)


def test_a_job_that_had_not_the_node_is_not_spoilt(site: Site) -> None:
    """Neither one that nobody knows, nor one that waits, nor one that had the node at another time."""
    world = site.cluster.world
    running = world.submit("train", gpus=2)
    waiting = world.submit("waits", gpus=2)
    world.settle()
    now = site.cluster.clock.now()
    site.past.records = [
        {"job_id": 900, "start_time": now - 500, "end_time": now - 400, "node_list": site.node, "generation": 2},
        {"job_id": 901, "start_time": now - 500, "end_time": now - 400, "node_list": "elsewhere", "generation": 1},
    ]

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(site.a_round(1, ids=[f"{job}.0.0.0" for job in (running, waiting, 900, 901, 999)]))
            peer.say(site.a_round(2, late_s=450, ids=[f"{job}.0.0.0" for job in (running, 900, 901)]))
            peer.say(site.a_round(3))
            await kept_up_to(peer, 3)

    asyncio.run(story())
    tasks = [subject.id for subject in site.subjects if subject.about == "task"]
    assert tasks == [f"{running}.1.0.0", "900.2.0.0"]


def test_a_pod_is_known_by_its_uid_and_a_number_is_another_clusters(site: Site) -> None:
    job = site.cluster.world.submit("train", gpus=1)
    site.cluster.world.settle()
    uid, elsewhere, strange = (f"0d1c6b0e-4c8b-4f0a-9d51-3f1f3e1a2b3{end}" for end in "cde")
    site.numbered, site.pods = False, {uid: (job, 1, site.node), elsewhere: (job, 1, "elsewhere")}

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            names = [f"pod-{uid}", f"pod-{elsewhere}", f"pod-{strange}", str(job)]
            peer.say(site.a_round(1, ids=[f"{name}.0.-4.0" for name in names]))
            await kept_up_to(peer, 1)

    asyncio.run(story())
    assert [subject.id for subject in site.subjects] == [f"{job}.1.-4.0"]


def test_a_round_waits_for_a_job_that_is_not_known_yet(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_door, "_UNKNOWN_S", 60.0)
    world = site.cluster.world
    first = world.submit("first", gpus=2)
    second = world.submit("second", gpus=2)
    world.settle()

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(site.a_round(1, ids=[f"{second}.0.0.0"]))
            world.finish("first")
            world.settle()
            await kept_up_to(peer, 1)

    asyncio.run(story())
    assert first != second
    assert [subject.id for subject in site.subjects] == [f"{second}.1.0.0"]


def test_what_a_node_tells_when_it_comes_back_waits_together_and_not_each_by_itself(site: Site) -> None:
    """Of pods that are nobody's only the first is waited for."""
    uids = [f"0d1c6b0e-4c8b-4f0a-9d51-3f1f3e1a2b{number:02}" for number in range(20)]

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            for no, uid in enumerate(uids, start=1):
                peer.say(site.a_round(no, late_s=900 - no, ids=[f"pod-{uid}.0.-4.0"]))
            peer.say(site.a_round(21))
            await kept_up_to(peer, 21)

    asyncio.run(story())
    assert [site.looks[uid] for uid in uids[1:]] == [1] * 19


def test_while_the_queue_is_not_known_a_job_is_waited_for_and_its_rounds_are_put_where_they_were_made(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer_door, "_UNKNOWN_S", 0.0)
    world, began = site.cluster.world, site.cluster.clock.now()
    site.behind = "the queue of Slurm was not seen yet"

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            for no in (1, 2):
                peer.say(site.a_round(no, late_s=5.0 - no, ids=["1.0.0.0"]))
            await site.looked("queue")
            world.wait(40)
            assert world.submit("train", gpus=1) == 1
            world.settle()
            await kept_up_to(peer, 2)

    asyncio.run(story())
    assert [(sample.at - began, subject.id) for sample in site.disk.samples for subject in sample.subjects] == [
        (-4.0, "1.1.0.0"),
        (-3.0, "1.1.0.0"),
    ]


def test_a_round_of_last_month_is_not_kept(site: Site) -> None:
    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(site.a_round(1, late_s=30 * 86_400.0))
            peer.say(site.a_round(2, late_s=-3600.0))
            peer.say(site.a_round(3))
            await kept_up_to(peer, 3)

    asyncio.run(story())
    assert len(site.disk.samples) == 1


def test_a_node_whose_clock_is_wrong_is_dated_by_the_daemons(site: Site) -> None:
    now = site.cluster.clock.now()
    frame = m.Frame(about="gpu", node=site.node, ids=["GPU-1"], columns={"gpu_util": [1]})

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(m.Round(no=1, at=now + 9_990, sent=now + 10_000, interval_s=10, frames=[frame]))
            await kept_up_to(peer, 1)

    asyncio.run(story())
    assert site.disk.samples[0].at == pytest.approx(site.cluster.clock.now() - 10, abs=1.0)


def test_a_newer_connection_of_a_node_takes_the_place_of_the_older(site: Site) -> None:
    async def story() -> None:
        async with site.open() as door:
            first = await site.greeted()
            second = await site.greeted(id=OTHER_ID)
            assert await first.is_cut_off()
            second.say(site.a_round(1))
            await kept_up_to(second, 1)
            assert door.nodes == (site.node,)

    asyncio.run(story())


def test_a_node_cannot_take_anothers_rounds_for_its_own(site: Site) -> None:
    """The numbers of rounds are kept by node and id: whoever learns an id of another node gains nothing."""

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(site.a_round(1))
            await kept_up_to(peer, 1)

    asyncio.run(story())
    assert list(site.disk.kept) == [f"{site.node}/{ID}"]


def test_ids_that_change_all_the_time_are_refused(site: Site) -> None:
    async def story() -> None:
        async with site.open():
            for number in range(16):
                await site.greeted(id=f"{number:032x}")
            peer = await site.connect()
            peer.say(site.hello(id="f" * 32))
            said = await peer.hear()
            assert isinstance(said, m.Refused)
            assert "too many gatherers" in said.why
            await site.greeted(id=f"{3:032x}")

    asyncio.run(story())


def test_strangers_who_say_nothing_do_not_keep_nodes_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_door, "_MOST_STRANGERS_EACH", 8)

    async def story() -> None:
        async with site.open():
            idle = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(8)]
            late, _ = await asyncio.open_connection("127.0.0.1", site.port)
            assert await late.read() == b"", "one too many from one address"
            for _, writer in idle:
                writer.close()
                await writer.wait_closed()
            while True:  # their places are free as soon as the daemon has seen them go
                try:
                    await site.greeted()
                    break
                except OSError:
                    await asyncio.sleep(0)

    asyncio.run(story())


def test_who_does_not_say_hello_in_time_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_door, "_HELLO_S", 0.05)

    async def story() -> None:
        async with site.open():
            silent, _ = await asyncio.open_connection("127.0.0.1", site.port)
            assert await silent.read() == b""

    asyncio.run(story())


def test_a_flood_is_read_slowly_and_costs_the_others_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_door, "_BURST_BYTES", 1)
    waited: list[float] = []
    sleep = asyncio.sleep

    async def counted(delay: float, *rest: Any) -> None:
        waited.append(delay)
        await sleep(0)

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            monkeypatch.setattr(outer_door.asyncio, "sleep", counted)
            peer.say(site.a_round(1, about="gpu", ids=[f"GPU-{'x' * 200}-{number}" for number in range(500)]))
            while not waited:
                await sleep(0.001)

    asyncio.run(story())
    assert max(waited) > 0.02, "100 KB at 2 MiB a second"


# --- passes ------------------------------------------------------------------------------------------------


def test_a_pass_is_private(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text("{}")
    file.chmod(0o644)
    with pytest.raises(PassError, match="chmod 600"):
        read_pass(file)
    file.chmod(0o600)
    with pytest.raises(PassError, match="not what `bireme node token` writes"):
        read_pass(file)
    with pytest.raises(PassError, match="No such file"):
        read_pass(tmp_path / "nothing")
    file.write_text('{"address": "there:1", "certificate": "", "token": "t"}')
    assert read_pass(file) == Pass("there:1", "", "t")
    with pytest.raises(PassError, match="damaged"):
        pinned("nonsense")


@pytest.mark.parametrize("nodes", ["", "n[1-", "a:b", "n" * 20_000])
def test_a_token_needs_names_of_nodes(nodes: str) -> None:
    with pytest.raises(TokenError):
        Tokens(b"k").made_for(nodes)


def test_addresses() -> None:
    assert host_and_port("[::1]:70") == ("::1", 70)
    assert host_and_port("a.example:70") == ("a.example", 70)
    for wrong in ("a", ":1", "a:", "a:x", "a:99999"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            host_and_port(wrong)


def gpu_of(site: Site, *holders: str) -> m.Devices:
    """Its only GPU, which these pods have."""
    held = [m.HeldDevice(uuid="GPU-1", holder=holder) for holder in holders]
    return m.Devices(devices=[m.Device(uuid="GPU-1", node=site.node, index=0)], held=held)


def test_a_gpu_that_a_kubelet_gave_to_a_pod_is_the_jobs(site: Site) -> None:
    job = site.cluster.world.submit("train", gpus=1)
    site.cluster.world.settle()
    site.numbered = False

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(gpu_of(site, "team/late"))
            await site.looked("team/late")
            site.pods["team/late"] = (job, 1, site.node)
            peer.say(site.a_round(1))
            await kept_up_to(peer, 1)
            peer.say(gpu_of(site, "team/others"))
            peer.say(site.a_round(2))
            await kept_up_to(peer, 2)

    asyncio.run(story())
    (held,) = site.disk.held.values()
    assert (held.job_id, held.generation, held.node, held.uuid, held.shared) == (job, 1, site.node, "GPU-1", False)
    assert held.end is not None, "another pod has it now"


def test_a_pod_is_believed_by_no_name_but_its_own(site: Site) -> None:
    """A job's pod of another node, and a namespace whose name looks like the beginning of a pod's."""
    job = site.cluster.world.submit("train", gpus=1)
    site.cluster.world.settle()
    site.pods = {"team/away": (job, 1, "elsewhere"), "team/mine": (job, 1, site.node)}

    async def story() -> None:
        async with site.open():
            peer = await site.greeted()
            peer.say(gpu_of(site, "team/away", "pod-team/mine"))
            peer.say(site.a_round(1))
            await kept_up_to(peer, 1)

    asyncio.run(story())
    assert site.disk.held == {}


@pytest.mark.parametrize("holder", ["", "team", "7.1", "team/Train", "team/a/b", "team/x\n", f"team/{'x' * 254}"])
def test_who_calls_something_else_a_pod_is_cut_off(site: Site, holder: str) -> None:
    assert "no pod" in cut_off_after(site, gpu_of(site, holder))
