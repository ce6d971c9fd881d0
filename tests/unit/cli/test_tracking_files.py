"""TensorBoard's files read by our own reader: those that a real writer wrote, and those that are broken."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from trackers import PYTHON, needed

from bireme.cli.tracking import files
from bireme.cli.tracking.experiment import _left_nothing, described, in_files
from bireme.cli.tracking.tensorboard import MOST_POINTS, MOST_RECORD, masked_sum, read_scalars

WRITES = """
import sys, numpy
from tensorboardX import SummaryWriter
with SummaryWriter(sys.argv[1]) as writer:
    for step in range(100):
        writer.add_scalar("train/loss", 1.0 / (step + 1), step, walltime=1700000000 + step)
    writer.add_scalar("accuracy", 0.75, 7)
    writer.add_text("notes", "no scalar")
    writer.add_histogram("weights", numpy.arange(10.0), 0)
    writer.add_image("picture", numpy.zeros((3, 300, 300)), 0)
"""


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_sum(head)) + data + struct.pack("<I", masked_sum(data))


def field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2, len(content))) + content


def scalar(tag: bytes, value: float, step: int, at: float = 5.0) -> bytes:
    one = field(1, tag) + b"\x15" + struct.pack("<f", value)
    return record(b"\x09" + struct.pack("<d", at) + bytes((0x10, step)) + field(5, field(1, one)))


def tensor(tag: bytes, value: float, plugin: bytes) -> bytes:
    """As TensorFlow 2 writes a scalar."""
    proto = b"\x08\x01" + field(4, struct.pack("<f", value))
    one = field(1, tag) + field(8, proto) + field(9, field(1, field(1, plugin)))
    return record(b"\x09" + struct.pack("<d", 1.0) + field(5, field(1, one)))


def curves(data: bytes) -> dict[str, list[tuple[float, int, float]]]:
    return read_scalars(io.BytesIO(data)).curves


def test_what_a_real_writer_wrote_is_read(tmp_path: Path) -> None:
    needed()
    subprocess.run([PYTHON, "-c", WRITES, str(tmp_path)], check=True, timeout=120)
    (path,) = tmp_path.iterdir()
    found = files.scalars_of(str(path))
    assert found.broken == ""
    assert found.curves["train/loss"] == [
        (1700000000.0 + step, step, pytest.approx(1.0 / (step + 1))) for step in range(100)
    ]
    assert found.curves["accuracy"][0][1:] == (7, 0.75)
    assert set(found.curves) == {"train/loss", "accuracy"}
    shown = files.look(str(tmp_path), 0.0, 4e9, "")
    assert shown.event_files == [str(path)], "found by its name"


def test_the_sum_is_crc32c() -> None:
    """123456789: e3069283, masked as TFRecord has it."""
    plain = 0xE3069283
    assert masked_sum(b"123456789") == ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_file_that_is_being_written_is_read_up_to_its_end() -> None:
    whole = scalar(b"loss", 0.5, 1) + scalar(b"loss", 0.25, 2)
    for cut in range(1, len(scalar(b"loss", 0.25, 2))):
        found = read_scalars(io.BytesIO(whole[:-cut]))
        assert found.curves == {"loss": [(5.0, 1, 0.5)]}
        assert "it ends within" in found.broken


def test_a_damaged_record_is_not_believed() -> None:
    good = scalar(b"loss", 0.5, 1)
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        found = read_scalars(io.BytesIO(bytes(bad)))
        assert found.curves == {}
        assert found.broken


@pytest.mark.parametrize("data", [b"\x0b", b"\x2a\xff\xff\xff\xff\x0f", b"\x2a\x05\x0a", b"\xff" * 20, b"\x10"])
def test_a_record_that_is_no_event_ends_the_file(data: bytes) -> None:
    found = read_scalars(io.BytesIO(record(data) + scalar(b"loss", 0.5, 1)))
    assert found.broken == "a record is not what it should be"


def test_a_long_record_is_passed_over() -> None:
    assert curves(record(b"x" * (MOST_RECORD + 1)) + scalar(b"loss", 0.5, 1)) == {"loss": [(5.0, 1, 0.5)]}


def test_scalars_as_tensors_are_read_and_other_tensors_are_not() -> None:
    assert curves(tensor(b"loss", 0.5, b"scalars")) == {"loss": [(1.0, 0, 0.5)]}
    assert curves(tensor(b"w", 0.5, b"histograms")) == {}


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    found = read_scalars(io.BytesIO(b"".join(scalar(b"l", float(i), 1, float(i)) for i in range(3 * MOST_POINTS))))
    curve = found.curves["l"]
    assert len(curve) <= MOST_POINTS
    assert (curve[0][0], curve[-1][0]) == (0.0, 3.0 * MOST_POINTS - 1)
    assert found.thinned == {"l"}


# -- finding -----------------------------------------------------------------------------------------------------------


def test_files_of_other_times_and_behind_links_are_not_the_jobs(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "a"
    logs.mkdir(parents=True)
    mine = logs / "events.out.tfevents.1700000100.n1.1.0"
    for name in (mine.name, "events.out.tfevents.1600000000.n1.1.0", "events.out.tfevents.x", "model.pt"):
        (logs / name).write_bytes(scalar(b"loss", 0.5, 1))
    (tmp_path / "link").symlink_to(logs)
    assert files.look(str(tmp_path), 1700000000.0, 1700000200.0, "").event_files == [str(mine)]


def test_a_folder_with_too_much_in_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_ENTRIES", 3)
    for index in range(5):
        (tmp_path / str(index)).touch()
    assert not files.look(str(tmp_path), 0.0, 1.0, "").whole


def test_a_run_of_wandb_is_found_by_its_folder_its_summary_and_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "wandb" / "offline-run-20261118_000000-east-7-abc"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "wandb-summary.json").write_text(json.dumps({"loss": 0.5, "_step": 3, "name": "x", "ok": True}))
    (tmp_path / "wandb" / "run-20261118_000000-other").mkdir()
    log = tmp_path / "slurm-7.out"
    log.write_text("wandb: View run at https://wandb.ai/lab/p/runs/east-7-abc\nhttps://x/runs/east-7-abcd\n")
    record = {"start_time": 1.0, "work_dir": str(tmp_path), "std_out": str(log)}
    wandb = {"run_id": "east-7-abc", "link": "", "mode": ""}
    found = {"job_id": 7, "mlflow": None, "wandb": wandb, **in_files(record, wandb, (), None)}
    assert wandb["link"] == "https://wandb.ai/lab/p/runs/east-7-abc"
    lines = list(described(found))
    assert f"         {folder}" in lines
    assert "           loss  0.5" in lines


def test_what_files_say_cannot_write_to_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1700000100.n1"
    path.write_bytes(scalar(b"a\x1b[2J", float("nan"), 1, 1e300))
    record = {"start_time": 1700000000.0, "work_dir": str(tmp_path), "end_time": 1700000200.0}
    found = {"job_id": 7, "mlflow": None, "wandb": None, **in_files(record, None, ("a\x1b[2J",), None)}
    text = "\n".join(described(found))
    assert "\x1b" not in text
    assert json.loads(json.dumps(found, allow_nan=False))["tensorboard"][0]["metrics"][0]["value"] is None


def test_links_and_pipes_in_the_place_of_files_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"balance": 5.0, "at": "https://wandb.ai/lab/p/runs/east-7"}))
    (folder := tmp_path / "run-1-east-7").mkdir()
    (inside := folder / "files").mkdir()
    (inside / "wandb-summary.json").symlink_to(secret)
    assert files.wandb_summary(str(folder)) == {}
    (elsewhere := tmp_path / "run-2-east-7").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "wandb-summary.json").write_text(secret.read_text())
    (elsewhere / "files").symlink_to(tmp_path / "real")
    assert files.wandb_summary(str(elsewhere)) == {}
    os.mkfifo(pipe := tmp_path / "slurm-7.out")
    assert files.wandb_address(str(pipe), "east-7") == "", "and nobody waits for a writer"
    (link := tmp_path / "slurm-8.out").symlink_to(secret)
    assert files.wandb_address(str(link), "east-7") == ""
    assert files.wandb_address(str(secret), "east-7"), "a file itself is read"
    with pytest.raises(OSError, match="no file"):
        files.scalars_of(str(pipe))


@pytest.mark.parametrize(
    ("run", "left_nothing"),
    [
        ({"supposed": True, "link": ""}, True),
        ({"supposed": True, "link": "", "folders": []}, True),
        ({"supposed": True, "link": "https://wandb.ai/lab/vision/runs/x"}, False),
        ({"supposed": True, "link": "", "folders": [{"path": "wandb/offline-run-1-x"}]}, False),
        ({"link": ""}, False),
    ],
)
def test_a_run_that_a_job_may_have_had_is_told_where_there_are_traces_of_it(
    run: dict[str, Any], left_nothing: bool
) -> None:
    assert _left_nothing(run) is left_nothing
    assert "supposed" not in run
