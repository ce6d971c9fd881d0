"""bireme timeline: rows that fit, without UTF-8 too; a page in which no text of a job is ever markup; its log lines."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from tests.unit.cli.fake_daemon import FakeDaemon

from bireme.cli.main import main
from bireme.cli.timeline.drawn import glyphs_for, text_of
from bireme.cli.timeline.log import lines_of
from bireme.cli.timeline.page import page_of

NASTY = "</script><script>alert(1)</script><b onclick='x'>&\x1b[31m\u202e"
T0 = 1_790_000_000.0


def span(start: float, end: float | None, text: str, tone: str, more: str = "") -> dict[str, Any]:
    return {"start": T0 + start, "end": None if end is None else T0 + end, "text": text, "tone": tone, "more": more}


def lane(name: str, title: str, **parts: Any) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "unit": "",
        "top": None,
        "about": "",
        "spans": [],
        "marks": [],
        "lines": [],
    } | parts


def told(text: str = "train", **more: Any) -> dict[str, Any]:
    curve = {"name": "n1 GPU 0", "start": T0 + 60, "step_s": 10.0, "low": [1.0, None, 3.0], "mean": [50.0, None, 90.0],
             "high": [60.0, None, 99.0]}  # fmt: skip
    timeline = {
        "job": "42", "job_id": 42, "name": text, "user": text, "user_id": os.geteuid(),
        "state": "COMPLETED", "start": T0, "end": T0 + 100,
        "now": T0 + 500, "is_over": True, "expected_start": None, "absent": [f"Nothing of {text}."],
        "outputs": [],
        "lanes": [
            lane("state", "state", spans=[span(0, 60, "waits", "wait"), span(60, 100, "runs", "run")]),
            lane("reasons", "why it waited", spans=[span(0, 60, "Resources + Licenses", "wait", text)]),
            lane("steps", "steps", spans=[span(60, 80, f"0 {text}", "run"), span(70, 90, "1 b", "bad", "failed")]),
            lane("events", "what happened",
                 marks=[{"at": T0 + 60, "text": "started", "tone": "good", "more": text}]),
            lane("gpu_util", "GPU util", unit="%", top=100.0, about="time",
                 lines=[curve, {**curve, "name": "n1 GPU 1"}]),
        ],
    }  # fmt: skip
    timeline["log"] = [
        {"stream": "out", "path": f"/tmp/{text}.out", "skipped": 7, "problem": "",
         "lines": [{"number": 1, "text": text, "start": T0 + 61, "end": T0 + 70, "source": "offset"},
                   {"number": 0, "text": "b", "start": T0 + 71, "end": T0 + 71, "source": "own"},
                   {"number": 0, "text": "c", "start": None, "end": None, "source": "none"}]},
    ]  # fmt: skip
    return {"timelines": [timeline | more], "left_out": 0, "now": T0 + 500}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_rows_fit_the_terminal(width: int, encoding: str) -> None:
    lines = [text.plain for text in text_of(told(), width, glyphs_for(encoding))]
    drawn = lines[: next(place for place, line in enumerate(lines) if not line)]
    assert max(cell_len(line) for line in drawn[1:]) <= max(40, width)
    assert any(line.startswith("state ") for line in drawn)
    if encoding == "ascii":
        "\n".join(lines).encode("ascii")


def test_a_row_shows_what_was_when() -> None:
    lines = [text.plain for text in text_of(told(), 64, glyphs_for("ascii"))]
    rows = {line[:13].strip(): line[14:] for line in lines[3:]}
    assert rows["state"] == "." * 30 + "#" * 20
    assert rows["Resources"].rstrip() == rows["Licenses"].rstrip() == "." * 30
    assert rows["GPU util"].strip()[0] == "+", "half of the scale"
    text = "\n".join(lines)
    for said in (
        "1m 00s  Resources + Licenses",
        "started",
        "mean 70%, most 90%",
        "7 bytes not shown",
        "absent: Nothing",
    ):
        assert said in text, said


def test_a_job_that_waits_has_its_expected_start_on_the_axis() -> None:
    waits = lane("state", "state", spans=[span(0, None, "waits", "wait")])
    answer = told(
        is_over=False, state="PENDING", now=T0 + 50, end=T0 + 100, expected_start=T0 + 100, lanes=[waits], log=[]
    )
    lines = [text.plain for text in text_of(answer, 64, glyphs_for("ascii"))]
    assert "expected to start" in lines[0]
    assert lines[3] == "state         " + "." * 25


class Parsed(HTMLParser):
    """What a browser would make of a page: its elements, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_no_text_of_a_job_is_markup() -> None:
    page = page_of(told(NASTY))
    plain, nasty = Parsed(page_of(told("x"))).tags, Parsed(page).tags
    assert [tag for tag, _ in nasty] == [tag for tag, _ in plain]
    assert not any(name.startswith("on") for _, attributes in nasty for name in attributes)
    assert "\x1b" not in page
    assert "alert(1)</script>" not in page


def test_a_page_asks_nobody_for_anything() -> None:
    page = page_of(told())
    for tag, attributes in Parsed(page).tags:
        assert not {"src", "href", "action", "data"} & attributes.keys(), tag
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|importScripts|import)\s*\(", page)
    policy = next(attributes["content"] for tag, attributes in Parsed(page).tags if attributes.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_a_page_says_in_tables_what_it_draws() -> None:
    page = page_of(told())
    for said in (
        "Why it waited",
        "Resources + Licenses",
        "What happened",
        "Steps",
        "What was measured",
        "70%",
        "Output",
    ):
        assert said in page, said
    assert 'scope="col"' in page


# --- the command ------------------------------------------------------------------------------------------------


def test_a_page_is_written_for_its_user_alone(daemon: FakeDaemon, tmp_path: Path) -> None:
    daemon.routes["GET /v1/jobs/42/timeline"] = (200, told())
    assert main(["timeline", "42", "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600
    assert "<!doctype html>" in (tmp_path / "page.html").read_text()


def test_json_has_the_lines_of_output_too(
    daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("one\ntwo\n")
    outputs = [{"stream": "out", "path": str(tmp_path / "out"), "looks": [[T0 + 60, T0 + 70, 4.0]]}]
    daemon.routes["GET /v1/jobs/42/timeline"] = (200, told(outputs=outputs))
    assert main(["timeline", "42", "--json"]) == 0
    (timeline,) = json.loads(capsys.readouterr().out)["timelines"]
    assert [(line["number"], line["text"], line["source"]) for line in timeline["log"][0]["lines"]] == [
        (1, "one", "offset"), (2, "two", "offset"),
    ]  # fmt: skip
    assert timeline["log"][0]["lines"][0]["end"] == T0 + 70


def test_what_cannot_be_is_said(daemon: FakeDaemon, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    daemon.refuse("GET /v1/jobs/7/timeline", "Invalid job id specified", "ESLURM_INVALID_JOB_ID", 404)
    assert main(["timeline", "7"]) != 0
    assert "there is no job 7" in capfd.readouterr().err
    assert main(["timeline", "7", "--json", "--html", "x"]) != 0
    assert "ask for one of them" in capfd.readouterr().err
    daemon.routes["GET /v1/jobs/42/timeline"] = (200, told())
    assert main(["timeline", "42", "--html", str(tmp_path / "none" / "x")]) != 0
    assert "cannot write" in capfd.readouterr().err


# --- log lines --------------------------------------------------------------------------------------------------


def read(path: Path, most: int) -> dict[str, Any]:
    timeline = told(outputs=[{"stream": "out", "path": str(path), "looks": []}])["timelines"][0]
    (output,) = lines_of(timeline, most)
    return output


def test_a_long_output_is_read_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "out"
    lines = [f"line {number} {'x' * 90}" for number in range(40_000)]
    path.write_text("\n".join(lines) + "\n")
    output = read(path, 8)
    assert [line["text"].split()[1] for line in output["lines"]] == ["0", "1", *map(str, range(39_994, 40_000))]
    assert output["skipped"] == sum(len(line) + 1 for line in lines[2:39_994])
    assert [line["number"] for line in output["lines"]] == [1, 2, 0, 0, 0, 0, 0, 0]


def test_a_short_output_with_more_lines_than_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("".join(f"{number}\n" for number in range(100)))
    output = read(path, 4)
    assert [(line["number"], line["text"]) for line in output["lines"]] == [
        (1, "0"),
        (98, "97"),
        (99, "98"),
        (100, "99"),
    ]
    assert output["skipped"] == sum(len(f"{number}\n") for number in range(1, 97))


def test_a_progress_bar_is_what_was_seen_last_and_a_line_may_lack_its_end(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"10%\r50%\r100%\r\nlast \xff")
    assert [line["text"] for line in read(path, 10)["lines"]] == ["100%", "last \ufffd"]


@pytest.mark.parametrize("most", [1, 2, 3, 1000])
def test_any_number_of_lines_may_be_asked_for(tmp_path: Path, most: int) -> None:
    path = tmp_path / "out"
    path.write_text("a\nb\nc\n")
    assert len(read(path, most)["lines"]) == min(most, 3)


def test_another_file_where_an_output_should_be_is_not_shown_to_who_may_read_more(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:$6$...\n")
    (tmp_path / "out").symlink_to(tmp_path / "secret")
    timeline = told(outputs=[{"stream": "out", "path": str(tmp_path / "out"), "looks": []}])["timelines"][0]
    (output,) = lines_of({**timeline, "user_id": os.geteuid() + 1}, 5)
    assert (output["lines"], output["problem"]) == (
        [],
        f"{tmp_path / 'out'} is not a file of the job's owner: not shown",
    )


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    assert read(tmp_path / "out", 5)["lines"] == []
    assert "No such file" in read(tmp_path / "none", 5)["problem"]
