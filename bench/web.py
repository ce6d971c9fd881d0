"""Rows `web`: what open pages cost the daemon, and how soon *Now* is there with ten thousand GPUs.

The pages are served as always: a process of their own beside a daemon. Readers are connections for live parts, as open
pages hold them; what browsers do with what they get is not in these figures.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import bireme
from bench import bireme_cluster
from bench.bireme_cluster import BiremeCluster
from bench.crowd import calls, percentile
from bench.fences import FullCluster
from bench.folders import new_folder
from bench.results import Row, Target
from bench.sizes import Sizes
from bench.submit import SCRIPT, fill_nodes
from bireme.api.app import create_app
from bireme.api.cluster import Service
from bireme.api.serving.server import Server, listen
from bireme.core.state.state import State
from bireme.daemon.process import running_pid
from bireme.daemon.web import process
from bireme.daemon.web.plan import WebPlan
from bireme.identity.sessions import Identity, Patience, Session, Sessions
from bireme.ports import Capabilities
from bireme.store.journal import SqliteStore

FIRST_S, MOST_KB, CORES, SLOWER = 1.0, 500.0, 1.0, 2.0
_TICK_S = os.sysconf("SC_CLK_TCK")
_OPENED_S = 120.0
_OWN = {"Sec-Fetch-Site": "same-origin"}


def measure(sizes: Sizes) -> Iterator[Row]:
    yield from _first_paint(sizes)
    yield from _open_pages(sizes)


# -- Now, with many GPUs -----------------------------------------------------------------------------------------------


def _first_paint(sizes: Sizes) -> Iterator[Row]:
    gpus = 8 * sizes.web_nodes
    with _served(Path(new_folder("web")), sizes.web_nodes) as (port, cookie):
        took, page = [], b""
        for _ in range(sizes.repeats):
            begun = time.perf_counter()
            page = _get(port, "/now", cookie)
            took.append(time.perf_counter() - begun)
            time.sleep(0.6)  # what was asked for the page before is old by then
        assert page.count(b'"n1"'), "there is no map on it"
    details = {"each": took}
    yield Row("web", f"Now with {gpus:,} GPUs, until all of it is there", statistics.median(took), "s",
              target=Target("<", FIRST_S), details=details)  # fmt: skip
    yield Row("web", f"its size with {gpus:,} GPUs", len(page) / 1000, "kB", target=Target("<", MOST_KB))


class _NoEngine:
    name, problem, about = "none", "", ""
    capabilities = Capabilities()


class _Clock:
    def now(self) -> float:
        return time.time()


class _Standing:
    """A cluster to which nothing happens, for the API to serve."""

    def __init__(self, state: State) -> None:
        self.state, self.engine, self.clock, self.unwritable = state, _NoEngine(), _Clock(), ""

    def subscribe(self, _: object) -> object:
        return lambda: None


class _Unkept:
    def read(self) -> list[Session]:
        return []

    def write(self, sessions: Iterable[Session]) -> None:
        """There is no daemon that would start again."""


@contextmanager
def _served(folder: Path, nodes: int) -> Iterator[tuple[int, str]]:
    """The API of a large cluster in this process, and the pages beside it: their port, and a session's cookie."""
    cluster = FullCluster(folder, nodes)
    store = SqliteStore(str(folder / "other.db"))
    sessions = Sessions(_Unkept(), time.time, lambda: Patience(3600.0, 3600.0))
    service = Service(version="0", pid=os.getpid(), up_since=0.0, owner_uid=os.geteuid(), sessions=sessions)
    app = create_app(_Standing(cluster.kernel.state), store, service)  # type: ignore[arg-type]
    path, loop = str(folder / "api.sock"), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = Server(app)
    asyncio.run_coroutine_threadsafe(server.start(listen(path, for_everyone=True)), loop).result()
    plan = WebPlan("on", "127.0.0.1", 0)
    sock = process.listener(plan, 0)
    os.chmod(folder, 0o755)
    pages = process.start(plan, sock, path, str(folder / "web.log"))
    try:
        port = sock.getsockname()[1]
        yield port, _entered(port, sessions.offer(Identity(os.geteuid(), os.getegid())))
    finally:
        pages.end()
        sock.close()
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        store.close()
        cluster.close()


def _entered(port: int, code: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/login", f"code={code}", {**_OWN, "Content-Type": "application/x-www-form-urlencoded"})
    return str(connection.getresponse().headers["set-cookie"]).partition(";")[0]


def _get(port: int, path: str, cookie: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
    return body


# -- many open pages ---------------------------------------------------------------------------------------------------


def _open_pages(sizes: Sizes) -> Iterator[Row]:
    with bireme_cluster.running(bireme_cluster.this_host(sizes.cpus)) as cluster:
        fill_nodes(cluster)
        with bireme.Client(cluster.home) as client:
            jobs = client.submit_many([SCRIPT] * sizes.queued_jobs)
        usual = calls(cluster, sizes.crowd_calls)
        with _readers(cluster, sizes, [str(job) for job in jobs]) as heard, _changes(cluster):
            daemon, web = running_pid(cluster.home) or 0, _web_pid(cluster)
            opened = _until_drawn(heard)
            begun, at, at_web = time.perf_counter(), _cpu_s(daemon), _cpu_s(web)
            children, drawn = _children_s(daemon), heard.parts
            beside = calls(cluster, sizes.crowd_calls)
            while time.perf_counter() - begun < sizes.crowd_s:
                beside += calls(cluster, 5)
                time.sleep(0.05)
            took = time.perf_counter() - begun
            cores, of_web = (_cpu_s(daemon) - at) / took, (_cpu_s(web) - at_web) / took
            thought, parts = (_children_s(daemon) - children) / took, heard.parts - drawn
    open_pages = f"{sizes.web_pages} open pages, {sizes.queued_jobs:,} jobs"
    details = {"cores_of_web": of_web, "cores_of_children": thought, "parts": parts, "took_s": took, "opened_s": opened}
    yield Row("web", f"the daemon beside {open_pages}", cores, "cores", target=Target("<", CORES), details=details)
    p99, floor = (percentile(figures) * 1000 for figures in (beside, usual))
    yield Row(
        "web", f"p99 of a listing beside {open_pages}", p99, "ms", floor, target=Target("<", SLOWER, of_ratio=True)
    )


_KINDS = (
    ("/now", "figures map next broken services"),
    ("/queue?q=-x{}", "jobs plan"),
    ("/jobs/{}", "job_head why_part diagnosis_part timeline_part report_part"),
)
"""Pages, and the parts that each listens for."""


_NAME = re.compile(rb'data: {"part": "(\w+)"')


class _Heard:
    """What open pages were sent: how many parts, and by page which of them it has not had yet."""

    def __init__(self) -> None:
        self.parts = 0
        self.lacking: dict[socket.socket, set[bytes]] = {}
        self._rest: dict[socket.socket, bytes] = {}

    def receive(self, sock: socket.socket) -> None:
        text = self._rest.get(sock, b"") + sock.recv(1 << 20)
        names, end = _NAME.findall(text), text.rfind(b"\n") + 1
        self._rest[sock] = text[end : end + 100]  # a part may begin there; its HTML is nothing to us
        self.parts += len(names)
        self.lacking[sock] -= set(names)


def _until_drawn(heard: _Heard) -> float:
    """Seconds until every page has had each of its parts: from then on what costs something is that they are open."""
    begun = time.perf_counter()
    while lacking := sum(map(len, heard.lacking.values())):
        if time.perf_counter() - begun > _OPENED_S:
            raise RuntimeError(f"{lacking} parts did not come within {_OPENED_S:g} s")
        time.sleep(0.05)
    return time.perf_counter() - begun


@contextmanager
def _readers(cluster: BiremeCluster, sizes: Sizes, jobs: list[str]) -> Iterator[_Heard]:
    """Open pages: a third look at Now, a third at the queue (each searches something else), a third at a job."""
    words = [sys.executable, "-m", "bireme", "web", "--json"]
    said = subprocess.run(words, env=cluster.env, capture_output=True, text=True, check=True)
    link = json.loads(said.stdout)
    port = urlsplit(link["pages"]).port or 0
    cookie = _entered(port, link["url"].rpartition("/")[2])
    selector, heard = selectors.DefaultSelector(), _Heard()
    for number, (page, parts) in zip(range(sizes.web_pages), itertools.cycle(_KINDS)):
        where = page.format(jobs[number % len(jobs)] if page.startswith("/jobs") else number)
        asked = "".join(f"&part={part}" for part in parts.split())
        sock = socket.create_connection(("127.0.0.1", port))
        request = f"GET /live?page={quote(where, safe='')}{asked} HTTP/1.1\r\nHost: b\r\nCookie: {cookie}\r\n\r\n"
        sock.sendall(request.encode())
        heard.lacking[sock] = set(parts.encode().split())
        selector.register(sock, selectors.EVENT_READ)
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            for key, _ in selector.select(0.2):
                with suppress(OSError):
                    heard.receive(key.fileobj)  # type: ignore[arg-type]

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        ended.set()
        thread.join()
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]


@contextmanager
def _changes(cluster: BiremeCluster) -> Iterator[None]:
    """Something happens every second."""
    ended = threading.Event()

    def change() -> None:
        with bireme.Client(cluster.home) as client:
            while not ended.wait(1.0):
                client.submit_many([SCRIPT])

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _web_pid(cluster: BiremeCluster) -> int:
    api = f"{cluster.home}/run/api.sock".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
            if b"bireme.web" in words and api in words:
                return int(name)
    raise RuntimeError("nobody serves the pages")


def _cpu_s(pid: int) -> float:
    return sum(_ticks(pid)[:2]) / _TICK_S


def _children_s(pid: int) -> float:
    """Of what it forked and has collected."""
    return sum(_ticks(pid)[2:]) / _TICK_S


def _ticks(pid: int) -> list[int]:
    """User and system time: its own, and its children's."""
    return [int(each) for each in Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[11:15]]
