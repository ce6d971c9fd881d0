"""Offline runs of W&B's client: what the real one wrote, and files that are broken."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
from trackers import PYTHON, needed

from bireme.cli.tracking import wandb_log
from bireme.cli.tracking.experiment import described, in_files
from bireme.cli.tracking.files import wandb_run
from bireme.cli.tracking.wandb_log import MOST_RECORD, Run, read_run

LOGS = """
import wandb
run = wandb.init()
for step in range(50):
    run.log({"train": {"loss": 1.0 / (step + 1)}, "note": "x" * 40_000 if step == 7 else "short"})
run.summary["best"] = 0.02
run.finish()
"""
HEAD = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)


def piece(body: bytes, kind: int = 1) -> bytes:
    return struct.pack("<IHB", zlib.crc32(bytes((kind,)) + body), len(body), kind) + body


def varint(value: int) -> bytes:
    return bytes((value,)) if value < 128 else bytes((value & 0x7F | 0x80,)) + varint(value >> 7)


def part(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def row(number: int = 2, **values: Any) -> bytes:
    items = (part(2, name.encode()) + part(16, json.dumps(value).encode()) for name, value in values.items())
    return part(number, b"".join(part(1, item) for item in items))


def read(data: bytes) -> Run:
    return read_run(io.BytesIO(data))


def test_what_the_real_client_logged_offline_is_shown(tmp_path: Path) -> None:
    needed()
    variables = {"WANDB_MODE": "offline", "WANDB_RUN_ID": "east-7-abc", "WANDB_PROJECT": "p", "WANDB_SILENT": "true"}
    environ = {"PATH": os.defpath, "HOME": str(tmp_path), **variables}
    done = subprocess.run([PYTHON, "-c", LOGS], cwd=tmp_path, env=environ, timeout=240, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    record = {"work_dir": str(tmp_path), "start_time": 1.0, "end_time": None}
    wandb: dict[str, Any] = {"run_id": "east-7-abc", "link": "", "mode": "offline"}
    in_files(record, wandb, ("train.loss",), None)
    (folder,) = wandb["folders"]
    assert folder["problem"] == ""
    assert [(each["metric"], each["step"], each["value"]) for each in folder["metrics"]] == [("train.loss", 49, 0.02)]
    (curve,) = folder["curves"]
    assert [step for _, step, _ in curve["points"]] == list(range(50)), "also what lies behind a row of two blocks"
    assert all(at > 1.7e9 for at, _, _ in curve["points"])
    text = "\n".join(described({"job_id": 7, "mlflow": None, "wandb": wandb}))
    assert "train.loss          0.02  step 49, " in text
    assert "best  0.02" in text


def test_a_record_in_pieces_over_blocks_is_one() -> None:
    body = row(loss=0.5, _step=3, _timestamp=9.0) + part(13, b"x" * 9_000)
    first = 32_768 - len(HEAD) - len(piece(b"")) - len(piece(row(loss=1.0, _step=2), 1))
    data = HEAD + piece(row(loss=1.0, _step=2)) + piece(body[: min(first, 5000)], 2)
    data += piece(body[5000:8000], 3) + piece(body[8000:], 4)
    assert read(data).history.curves == {"loss": [(0.0, 2, 1.0), (9.0, 3, 0.5)]}


def test_room_at_the_end_of_a_block_is_passed_over() -> None:
    head = len(piece(part(13, b"x" * 20_000))) - 20_000
    data = HEAD + piece(part(13, b"x" * (32_768 - len(HEAD) - head - 3))) + b"\0\0\0"
    assert len(data) == 32_768
    data += piece(row(loss=2.0))
    assert read(data).history.curves == {"loss": [(0.0, 0, 2.0)]}


def test_only_numbers_are_metrics_and_the_clients_own_are_not() -> None:
    data = HEAD + piece(row(loss=1, name="x", ok=True, _runtime=3, big=10**400, n=None))
    data += piece(row(3, best=0.25, _runtime=3))
    run = read(data)
    assert (set(run.history.curves), run.summary) == ({"loss"}, {"best": 0.25})


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (piece(row(loss=2.0))[:-3], "it ends within a record"),
        (piece(row(loss=2.0))[:5], "it ends within a record's head"),
        (b"\1" + piece(row(loss=2.0))[1:], "a record is damaged"),
        (struct.pack("<IHB", 1, 3, 9) + b"abc", "a record's head is damaged"),
        (struct.pack("<IHB", 1, 65_535, 1), "a record's head is damaged"),
        (piece(b"\xff" * 20), "a record is not what it should be"),
        (b"\0" * 100, ""),
    ],
)
def test_a_file_is_read_up_to_where_it_is_broken(rest: bytes, problem: str) -> None:
    run = read(HEAD + piece(row(loss=1.0)) + rest)
    assert (run.history.curves, run.history.broken) == ({"loss": [(0.0, 0, 1.0)]}, problem)


def test_what_is_no_such_file_says_so() -> None:
    assert read(b"#!/bin/sh\n").history.broken == "it is no file of W&B's client"


def test_a_record_that_is_very_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_log, "MOST_RECORD", 100)
    assert MOST_RECORD > 100
    run = read(HEAD + piece(row(loss=1.0) + part(13, b"x" * 200)) + piece(row(loss=2.0)))
    assert run.history.curves == {"loss": [(0.0, 0, 2.0)]}


def test_a_link_and_a_pipe_are_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(HEAD + piece(row(loss=1.0)))
    folder = tmp_path / "offline-run-1-x"
    folder.mkdir()
    assert wandb_run(str(folder)) == Run(), "no file, nothing"
    (folder / "run-x.wandb").symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        wandb_run(str(folder))
    (folder / "run-x.wandb").unlink()
    os.mkfifo(folder / "run-x.wandb")
    with pytest.raises(OSError, match="it is no file"):
        wandb_run(str(folder))
