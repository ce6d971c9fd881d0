"""bireme top: frames that fit any screen, what each key does, and the whole of it on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli.connection import make_transport
from bireme.cli.main import main
from bireme.cli.top.command import keys_of
from bireme.cli.top.job_page import draw_job
from bireme.cli.top.looking import JobPicture, Picture, Spark, Watch, spark_of, tail_of
from bireme.cli.top.screen import draw, draw_help, real_use
from bireme.cli.top.view import SORTS, View, pressed, shown_jobs

ABOUT = {"cluster": "lab", "now": 1_790_000_000.0}
_PATIENCE_S = 60.0


def node(name: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "state": "MIXED", "flags": [], "cpus": 16, "memory_mib": 32000, "jobs": [], **facts}


def gpu(where: str, index: int, job_ids: tuple[int, ...] = (), **values: float) -> dict[str, Any]:
    return {"node": where, "uuid": f"GPU-{where}-{index}", "index": index, "model": "H100", "memory_mib": 81920,
            "parent": "", "profile": "", "job_ids": list(job_ids), "unowned": not job_ids,
            "values": values}  # fmt: skip


def job(job_id: int, state: str = "RUNNING", **facts: Any) -> dict[str, Any]:
    return {"job_id": job_id, "state": state, "name": f"job{job_id}", "user_name": "alice", "elapsed_s": 61,
            "time_limit_s": 3600, "node_list": "n1", "reason": "Resources", **facts}  # fmt: skip


def shot(drawn: RenderableType, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(drawn)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# --- frames -----------------------------------------------------------------------------------------------------


def test_without_figures_it_shows_which_gpus_are_held() -> None:
    for used in ("gpu:a100:2(IDX:1,3)", "gpu:(null):2(IDX:1,3)"):
        text = shot(draw(Picture(ABOUT, [node("n1", gres="gpu:a100:4", gres_used=used)], []), None))
        assert "□■□■" in text
        assert "GPUs 2/4" in text
        assert "nothing in the queue" in text


def test_it_shows_where_jobs_run_and_why_they_wait() -> None:
    text = shot(draw(Picture(ABOUT, [node("n1")], [job(4), job(5, "PENDING")]), None))
    for said in ("1:01", "58:59", "(Resources)"):
        assert said in text


def test_a_gpu_has_what_its_hardware_counted_and_says_which_figure_it_is() -> None:
    gpus = [
        gpu("n1", 0, (4,), gpu_util=99, gpu_sm_active=61, gpu_tensor_active=34, gpu_memory_used=40960, gpu_power=412),
        gpu("n1", 1, (4,), gpu_util=97),
        gpu("n1", 2, (), gpu_answers=0),
        gpu("n1", 3),
    ]
    lines = shot(draw(Picture(ABOUT, [node("n1")], [job(4)], gpus), None)).splitlines()
    rows = {line.split()[1]: line for line in lines if line.startswith("n1")}
    assert "61% SM tensor 34%" in rows["0"]
    assert "▮▮▮▮▮▯▯▯▯▯ 40/80G" in rows["0"]
    assert "412 W" in rows["0"]
    assert "4 job4 (alice)" in rows["0"]
    assert "97% util" in rows["1"]
    assert "does not answer" in rows["2"]
    assert "not measured" in rows["3"]
    assert rows["3"].rstrip().endswith("free")
    assert real_use({}) is None


def test_a_gpu_on_which_somebody_is_whom_no_job_has_there_is_not_called_free() -> None:
    gpus = [gpu("n1", 0, (4,), gpu_unowned_memory=2048), gpu("n1", 1, (), gpu_unowned_memory=512)]
    lines = shot(draw(Picture(ABOUT, [node("n1")], [job(4)], gpus), None)).splitlines()
    rows = {line.split()[1]: line.rstrip() for line in lines if line.startswith("n1")}
    assert rows["0"].endswith("no job's: 2.0G, 4 job4 (alice)")
    assert rows["1"].endswith("no job's: 0.5G")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10)])
@pytest.mark.parametrize("gpus", [0, 4, 1000])
@pytest.mark.parametrize("jobs", [0, 500])
def test_a_frame_fits_the_screen(width: int, height: int, gpus: int, jobs: int) -> None:
    many = [gpu(f"n{index // 8}", index % 8, (index,), gpu_util=float(index % 100)) for index in range(gpus)]
    spark = Spark((1.0,) * 20, 100.0, "SM", 50.0)
    picture = Picture(
        ABOUT, [node(f"n{index}") for index in range(125)], [job(index) for index in range(jobs)], many, {3: spark}
    )
    for view in (View(selected=jobs - 1), View(upper="gpus", page=99), View(upper="nodes", filter="job3")):
        lines = shot(draw(picture, height, width, view), width).splitlines()
        assert len(lines) <= height
        assert max(cell_len(line) for line in lines) <= width


def test_a_thousand_gpus_are_shown_by_node_and_page_by_page() -> None:
    many = [gpu(f"n{index // 8:03}", index % 8, (1,), gpu_util=float(index % 8)) for index in range(1000)]
    picture = Picture(ABOUT, [], [], many)
    first, third = (shot(draw(picture, 24, 100, View(page=page)), 100) for page in (0, 2))
    assert "n000" in first
    assert "8/8" in first
    assert "4% util" in first, "the mean of 0 to 7, as 3.5"
    assert "[1/18]" in first
    assert "n014" in third
    assert "n000" not in third
    each = shot(draw(picture, 24, 100, View(upper="gpus", page=10**6)), 100)
    assert "n124" in each, "the last page"


def test_the_chosen_job_is_on_the_screen() -> None:
    picture = Picture(ABOUT, [node("n1")], [job(index, priority=-index) for index in range(300)])
    assert "job250 " in shot(draw(picture, 24, 100, View(selected=250)), 100)


def test_help_names_every_key() -> None:
    text = shot(draw_help())
    assert all(word in text for word in ("sort", "filter", "open", "log", "leave"))


# --- curves of jobs ---------------------------------------------------------------------------------------------


def curve(metric: str, *values: float | None, about: str = "gpu", name: str = "GPU-1") -> dict[str, Any]:
    return {"metric": metric, "mean": list(values), "about": about, "node": "n1", "id": name, "unit": "%"}


def test_a_spark_is_the_best_that_is_known() -> None:
    both = [curve("gpu_util", 99.0, 99.0), curve("gpu_sm_active", 40.0, None), curve("gpu_sm_active", 60.0, 20.0)]
    spark = spark_of(both)
    assert spark is not None
    assert (spark.values, spark.word, spark.newest) == ((50.0, 20.0), "SM", 20.0)
    spark = spark_of([curve("cpu_user", 1.0), curve("cpu_user", 2.5)])
    assert spark is not None
    assert (spark.values, spark.word) == ((3.5,), "CPUs")
    assert spark_of([]) is None


def test_the_page_of_a_job_fits_and_has_curves_tasks_and_the_log() -> None:
    curves = [curve("gpu_sm_active", 10.0, 90.0)] + [
        curve(metric, 2.0, about="task", name=f"4.1.0.{task}") for metric in ("cpu_user", "memory") for task in range(9)
    ]
    page = JobPicture(curves, [f"line {number}" for number in range(100)])
    for width, height in ((80, 24), (200, 60)):
        lines = shot(draw_job(job(4), page, width, height, only_log=False), width).splitlines()
        assert len(lines) <= height
        text = "\n".join(lines)
        for said in ("sm_active", "90%", "0.0", "line 99", *(("... 5 more",) if height == 24 else ())):
            assert said in text, text
        log = shot(draw_job(job(4), page, width, height, only_log=True), width).splitlines()
        assert len(log) <= height
        assert f"line {100 - (height - 2)}" in log[1]


def test_a_job_that_waits_again_has_no_curves_of_the_start_that_ended(daemon: FakeDaemon) -> None:
    daemon.routes |= {
        "GET /v1/ping": (200, ABOUT),
        "GET /v1/nodes": (200, {"nodes": []}),
        "GET /v1/jobs": (200, {"jobs": [job(4, generation=3), job(5, "PENDING", generation=2)]}),
        "GET /v1/telemetry/now": (200, {"gpus": [], "problem": ""}),
        "GET /v1/telemetry/series": (200, {"curves": [curve("gpu_sm_active", 10.0, 44.0)]}),
    }
    with make_transport() as transport:
        watch = Watch(transport)
        runs, waits = watch.picture().jobs
        watch.refresh([4, 5], 100.0)
        assert set(watch.picture().sparks) == {4}
        assert len(watch.job(runs, 100.0, 10, 5).curves) == 1
        page = watch.job(waits, 100.0, 10, 5)
    assert page.curves == []
    asked = [query for path, query in daemon.queries if path == "/v1/telemetry/series"]
    assert {(query["job"], query["generation"]) for query in asked} == {("4", "3")}
    text = shot(draw_job(waits, page, 140, 24, only_log=False))
    assert "it waits again: nothing is measured of it now; bireme timeline 5 tells of its earlier starts" in text


def test_the_page_of_a_job_has_its_gpus_by_their_numbers(daemon: FakeDaemon) -> None:
    mixed = [("gpu_util", "GPU-b"), ("gpu_sm_active", "GPU-b"), ("gpu_util", "GPU-a"), ("gpu_sm_active", "GPU-a")]
    seen = [{**gpu("n1", number), "uuid": uuid} for number, uuid in enumerate(("GPU-b", "GPU-a"))]
    daemon.routes |= {
        "GET /v1/ping": (200, ABOUT),
        "GET /v1/nodes": (200, {"nodes": []}),
        "GET /v1/jobs": (200, {"jobs": [job(4)]}),
        "GET /v1/telemetry/now": (200, {"gpus": seen, "problem": ""}),
        "GET /v1/telemetry/series": (200, {"curves": [curve(metric, 1.0, name=uuid) for metric, uuid in mixed]}),
    }
    with make_transport() as transport:
        watch = Watch(transport)
        (runs,) = watch.picture().jobs
        page = watch.job(runs, 100.0, 10, 5)
    rows = [line.split()[:4] for line in shot(draw_job(runs, page, 100, 24, only_log=False)).splitlines()[2:6]]
    assert rows == [[name, "n1", "GPU", str(no)] for name in ("sm_active", "util") for no in (0, 1)]


def test_nothing_is_added_up_of_gpus_that_do_not_tell_it() -> None:
    mute = [gpu(f"n{no // 8}", no % 8) for no in range(400)]
    text = shot(draw(Picture(ABOUT, [], [], mute), 24, 140, View()))
    assert "not measured" in text
    assert not re.search(r"\d+/\d+G|\d W", text), text


def test_the_end_of_a_log_is_text_and_a_pipe_is_not_read(tmp_path: Path) -> None:
    me = os.geteuid()
    (tmp_path / "log").write_bytes(b"a\n\x1b[31mred\r10%\r20%\nlast")
    assert tail_of(str(tmp_path / "log"), me, 2) == (["20%", "last"], "")
    (tmp_path / "log").write_bytes(b"\x1b]0;title\x07x\n")
    assert "\x1b" not in tail_of(str(tmp_path / "log"), me, 2)[0][0]
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in tail_of(str(tmp_path / "pipe"), me, 2)[1]
    assert "is not a file of the job's owner" in tail_of(str(tmp_path / "log"), me + 1, 2)[1]
    assert "No such file" in tail_of(str(tmp_path / "none"), me, 2)[1]


# --- keys -------------------------------------------------------------------------------------------------------

PICTURE = Picture(
    ABOUT,
    [],
    [job(1, tres_allocated={"gres/gpu": 1}, user_name="bob"), job(2, tres_allocated={"gres/gpu": 8}, elapsed_s=5),
     job(3, "PENDING", name="needle")],
    [],
    {1: Spark((), 100.0, "SM", 80.0), 2: Spark((), 100.0, "SM", 3.0)},
)  # fmt: skip


def after(*keys: str, view: View | None = None) -> View:
    view = view or View()
    for key in keys:
        view = pressed(view, key, PICTURE)
    return view


def order(sort: str) -> list[int]:
    return [one["job_id"] for one in shown_jobs(PICTURE, View(sort=sort))]


def test_jobs_are_sorted() -> None:
    assert {sort: order(sort) for sort in SORTS} == {
        "state": [1, 2, 3], "use": [2, 1, 3], "gpus": [2, 1, 3], "time": [1, 3, 2], "user": [2, 3, 1],
    }  # fmt: skip
    assert [after(*"s" * count).sort for count in range(6)] == [*SORTS, "state"]


def test_a_filter_is_typed_kept_and_dropped() -> None:
    view = after("/", *"nexx", "backspace", "backspace", *"ed")
    assert view.is_typing
    assert [one["job_id"] for one in shown_jobs(PICTURE, view)] == [3]
    assert after("q", view=view).mode == "list", "while it is typed, q is a letter"
    kept = after("enter", view=view)
    assert (kept.is_typing, kept.filter) == (False, "need")
    assert after("escape", view=kept) == View()
    assert after("escape", view=view) == View()
    assert len(after("/", *"x" * 999).filter) == 40


def test_one_moves_opens_and_comes_back() -> None:
    assert after("down").selected == 1
    assert after("j", "j", "down", "j", "j").selected == 3
    assert after("end", "k").selected == 2
    assert after("end", "home").selected == 1
    opened = after("down", "down", "enter")
    assert (opened.mode, opened.selected) == ("job", 2)
    assert after("l", view=opened).mode == "log"
    assert after("l", "escape", view=opened).mode == "job"
    assert after("l", "escape", "escape", view=opened).mode == "list"
    assert after("enter").selected == 1, "the first, where none is chosen"
    assert after("?").mode == "help"
    assert after("?", "?").mode == after("?", "escape").mode == "list"


@pytest.mark.parametrize(
    "keys", [("q",), ("escape",), ("end of input",), ("down", "enter", "q"), ("/", "end of input")]
)
def test_one_can_always_leave(keys: tuple[str, ...]) -> None:
    assert after(*keys).mode == "over"


def test_an_empty_queue_has_nothing_to_open() -> None:
    empty = Picture(ABOUT, [], [])
    assert pressed(View(), "enter", empty) == View()
    assert pressed(View(), "down", empty) == View()


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"jq", ["j", "q"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b", ["escape"]),
        (b"\x1b[F\x1b[4~\x1bOF\x1b[8~", ["end"] * 4),
        (b"\x1b[H\x1b[1~\x1bOH\x1b[7~", ["home"] * 4),
        (b"\x1b[6~\x1b[1;5Cx", ["page down", "x"]),
        (b"\r\x7f", ["enter", "backspace"]),
        (b"", ["end of input"]),
        (b"\xc3\xa4\x01q", ["q"]),
    ],
)
def test_keys_are_read_as_terminals_send_them(data: bytes, keys: list[str]) -> None:
    assert keys_of(data) == keys


# --- on a terminal ----------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(daemon: FakeDaemon, tmp_path: Path) -> FakeDaemon:
    (tmp_path / "out.log").write_text("epoch 7 of 90\n")
    jobs = [job(4, std_out=str(tmp_path / "out.log"), tres_allocated={"gres/gpu": 1}), job(5, "PENDING", name="waits")]
    daemon.routes |= {
        "GET /v1/ping": (200, ABOUT),
        "GET /v1/nodes": (200, {"nodes": [node("n1")]}),
        "GET /v1/jobs": (200, {"jobs": jobs}),
        "GET /v1/telemetry/now": (200, {"gpus": [gpu("n1", 0, (4,), gpu_sm_active=61.0)], "problem": ""}),
        "GET /v1/telemetry/series": (200, {"curves": [curve("gpu_sm_active", 10.0, 44.0)]}),
    }
    return daemon


class Terminal:
    """A screen of so many lines and columns, with the command on it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seen = ""

    def press(self, keys: bytes) -> None:
        self._seen = ""
        os.write(self._descriptor, keys)

    def shows(self, text: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while text not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._seen):
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} is not shown: {self._seen[-3000:]}"
            self._seen += os.read(self._descriptor, 65536).decode("utf-8", "replace")


@contextmanager
def on_a_terminal(lines: int, columns: int) -> Iterator[Terminal]:
    pid, descriptor = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        words = [sys.executable, "-m", "bireme.cli.main", "top", "-d", "0.2"]
        os.execve(words[0], words, {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"})
    try:
        yield Terminal(descriptor)
        # What it still writes is read, or it could not end.
        while True:
            try:
                if not os.read(descriptor, 65536):
                    break
            except OSError:
                break
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(descriptor)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(("lines", "columns"), [(24, 80), (60, 200)])
def test_a_session_on_a_terminal(cluster: FakeDaemon, lines: int, columns: int) -> None:
    with on_a_terminal(lines, columns) as terminal:
        terminal.shows("61% SM")
        terminal.shows("44% SM")
        terminal.press(b"/waits\r")
        terminal.shows("filter: waits")
        terminal.press(b"\x1b")
        terminal.shows("sort: state   ?")
        terminal.press(b"s")
        terminal.shows("sort: use")
        terminal.press(b"\x1b[B\r")
        terminal.shows("epoch 7 of 90")
        terminal.press(b"l")
        terminal.shows("escape back   q quit")
        terminal.press(b"?")
        terminal.shows("bireme top: keys")
        terminal.press(b"q")


def test_without_a_terminal_it_is_one_plain_shot(cluster: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 0
    text = capsys.readouterr().out
    assert "61% SM" in text
    assert "\x1b" not in text
    assert "q quit" not in text
    cluster.refuse("GET /v1/telemetry/now", "nothing is measured here: telemetry.gather is off", None, 404)
    assert main(["top", "--once"]) == 0
    assert "n1" in capsys.readouterr().out
