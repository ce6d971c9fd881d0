"""The program that reads with an owner's identity: a request in, clues out, nothing that is not the owner's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import python_for_everyone
from tests.unit.evidence.reading_rules import BOOK, ERROR

from bireme.core.diagnosis.model import Line
from bireme.evidence.rulebook import load
from bireme.evidence.wire import clues_from, line_data, line_from

SITE = """
[[rule]]
id = "site-endless"
cause = "unknown"
words = ["aaaa"]
pattern = '(a+)+$'
"""


def run(request: Any, python: str = sys.executable, **more: Any) -> tuple[int, dict[str, Any]]:
    data = request if isinstance(request, bytes) else json.dumps(request).encode()
    done = subprocess.run(
        [python, "-m", "bireme.evidence"], input=data, stdout=subprocess.PIPE, timeout=60, check=False, **more
    )
    return done.returncode, json.loads(done.stdout)


def request(*paths: Path, **more: Any) -> dict[str, Any]:
    return {"owner_uid": os.geteuid(), "outputs": [{"path": str(path)} for path in paths], **more}


def test_clues_ends_and_problems(tmp_path: Path) -> None:
    log = tmp_path / "rank_1.log"
    log.write_text(f"one\nCUDA out of memory. Tried to allocate 2.00 GiB token=abcdef123456\n{'a' * 60}!\n")
    (tmp_path / "rules.d").mkdir()
    (tmp_path / "rules.d" / "site.toml").write_text(SITE)
    code, told = run(request(log, tmp_path / "absent", rules=str(tmp_path / "rules.d"), limits={"seconds": 5}))
    assert code == 0
    (clue,) = clues_from(told["clues"], load().book())
    assert (clue.rule.cause, clue.line.number, clue.line.rank) == ("gpu_out_of_memory", 2, 1)
    assert "abcdef123456" not in json.dumps(told)
    assert len(told["ends"]) == 3
    assert any("absent" in problem for problem in told["problems"])
    assert any("site-endless" in problem for problem in told["problems"])


@pytest.mark.parametrize(
    "bad",
    [b"", b"no JSON", b"[" * 100_000, b"{}", b'{"outputs": []}', b'{"outputs": [], "owner_uid": -1}'],
)
def test_bad_requests_are_refused(bad: bytes) -> None:
    code, told = run(bad)
    assert code == 2
    assert told["error"]


def test_paths_begin_at_the_root(tmp_path: Path) -> None:
    assert run({"owner_uid": os.geteuid(), "outputs": [{"path": "a.log"}]})[0] == 2
    assert run(request(Path("-")))[0] == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_as_another_user_it_reads_that_users_files_only() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _read_as_another_user(Path(folder))


def _read_as_another_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    python = python_for_everyone(tmp_path)
    mine, theirs = tmp_path / "mine.log", tmp_path / "theirs.log"
    for path, uid in ((mine, 0), (theirs, 12345)):
        path.write_text("CUDA out of memory. Tried to allocate 2.00 GiB\n")
        os.chown(path, uid, uid)
        path.chmod(0o644)
    os.symlink(mine, tmp_path / "link.log")
    asked = {"owner_uid": 12345, "outputs": [{"path": str(tmp_path / name)} for name in ("theirs.log", "link.log")]}
    code, told = run(asked, python, user=12345, group=12345, extra_groups=[], env={"PATH": os.defpath, "HOME": "/"})
    assert code == 0
    assert {clue["line"]["file"] for clue in told["clues"]} == {str(theirs)}
    assert "not a file of the job's owner" in told["problems"][0]


def test_what_comes_from_it_is_not_believed() -> None:
    line = line_data(Line(text=ERROR, file="a.log", number=3, rank=1, at=5.0))
    (clue,) = clues_from([{"rule": "oom", "line": line, "named": {"wanted": "2GiB"}}], BOOK)
    assert (clue.line.file, clue.line.rank, clue.named) == ("a.log", 1, {"wanted": "2GiB"})
    for lie in (
        None, 3, [], {}, {"rule": "oom"}, {"rule": "nobody's", "line": line}, {"rule": ["oom"], "line": line},
        {"rule": "oom", "line": {**line, "source": "kernel"}}, {"rule": "xid", "line": {**line, "source": "kernel"}},
        {"rule": "xid", "line": line}, {"rule": "oom", "line": {**line, "text": 3}},
    ):  # fmt: skip
        assert clues_from([lie], BOOK) == []
    odd = line_from({**line, "number": -5, "rank": True, "at": float("nan"), "others": 1 << 70, "node": ["x"]})
    assert odd is not None
    assert (odd.number, odd.at, odd.others, odd.node) == (0, None, 0, "")
