"""Finding a job's newest whole checkpoint, in every layout, whatever is broken, half-written or hostile beside it."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bireme.evidence.checkpoints.looking import Looker, Wanted

OLD, NEW = 1_700_000_000.0, 1_700_000_600.0


def archive() -> bytes:
    """What torch.save writes: a ZIP archive."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        packed.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        packed.writestr("archive/data/0", b"\1" * 4096)
    return data.getvalue()


def safetensors(payload: int = 16) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [payload // 4], "data_offsets": [0, payload]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\1" * payload


def write(path: Path, data: bytes, at: float = NEW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at, at))
    return path


def look(folder: Path, path: str = "", since: float = 0.0, looker: Looker | None = None) -> tuple[str, int | None, str]:
    """(path below the folder, step, layout) of what is found; three times nothing where nothing is."""
    found = (looker or Looker()).newest(Wanted(folder=str(folder), path=path, since=since)).found
    if found is None:
        return "", None, ""
    return os.path.relpath(found.path, folder), found.step, found.layout


def passed_over(folder: Path, path: str = "") -> str:
    return "\n".join(Looker().newest(Wanted(folder=str(folder), path=path)).passed_over)


def hf(folder: Path, step: int, at: float, *, state: bool = True) -> None:
    write(folder / f"checkpoint-{step}/model.safetensors", safetensors(), at)
    if state:
        write(folder / f"checkpoint-{step}/trainer_state.json", json.dumps({"global_step": step}).encode(), at)


def distributed(folder: Path, name: str, at: float, *, metadata: bool = True) -> None:
    for rank in range(2):
        write(folder / name / f"__{rank}_0.distcp", b"\1" * 64, at)
    if metadata:
        write(folder / name / ".metadata", b"\x80\x04", at)


def orbax(folder: Path, step: str, at: float, *, committed: bool = True) -> None:
    write(folder / step / "default/manifest.ocdbt", b"\1", at)
    if committed:
        write(folder / step / "_CHECKPOINT_METADATA", b"{}", at)


def tracked(folder: Path, step: int, at: float, *, latest: bool = True) -> None:
    write(folder / f"global_step{step}/mp_rank_00_model_states.pt", archive(), at)
    if latest:
        write(folder / "latest", f"global_step{step}".encode(), at)


def lightning(folder: Path, step: int, at: float, *, whole: bool = True) -> None:
    write(folder / f"version_0/checkpoints/epoch=1-step={step}.ckpt", archive()[: None if whole else 2000], at)


def plain(folder: Path, step: int, at: float, *, whole: bool = True) -> None:
    write(folder / f"model_step_{step}.pt", archive()[: None if whole else -7], at)


LAYOUTS: dict[str, tuple[Callable[[Path, float], None], Callable[[Path, float], None], str]] = {
    "hf-trainer": (
        lambda to, at: hf(to, 500, at),
        lambda to, at: hf(to, 1000, at, state=False),
        "checkpoint-500",
    ),
    "torch.distributed": (
        lambda to, at: distributed(to, "step_500", at),
        lambda to, at: distributed(to, "step_1000", at, metadata=False),
        "step_500",
    ),
    "orbax": (
        lambda to, at: orbax(to, "500", at),
        lambda to, at: orbax(to, "1000.orbax-checkpoint-tmp-7", at, committed=False),
        "500",
    ),
    "deepspeed": (
        lambda to, at: tracked(to, 500, at),
        lambda to, at: tracked(to, 1000, at, latest=False),
        "global_step500",
    ),
    "lightning": (
        lambda to, at: lightning(to, 500, at),
        lambda to, at: lightning(to, 1000, at, whole=False),
        "version_0/checkpoints/epoch=1-step=500.ckpt",
    ),
    "file": (
        lambda to, at: plain(to, 500, at),
        lambda to, at: plain(to, 1000, at, whole=False),
        "model_step_500.pt",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_newest_whole_one_of_each_layout_is_found_with_its_step(layout: str, tmp_path: Path) -> None:
    whole, broken, path = LAYOUTS[layout]
    whole(tmp_path / "out", OLD)
    broken(tmp_path / "out", NEW)
    assert look(tmp_path, "out") == (f"out/{path}", 500, layout)
    assert look(tmp_path) == (f"out/{path}", 500, layout)
    assert "1000" in passed_over(tmp_path, "out")


def test_a_damaged_model_file_makes_a_trainers_checkpoint_unusable_and_an_index_names_what_is_missing(
    tmp_path: Path,
) -> None:
    hf(tmp_path, 500, OLD)
    hf(tmp_path, 1000, NEW)
    write(tmp_path / "checkpoint-1000/model.safetensors", safetensors()[:-3], NEW)
    assert look(tmp_path)[1] == 500
    assert "cut off: its last tensor ends beyond it" in passed_over(tmp_path)
    hf(tmp_path, 1500, NEW + 1)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    write(tmp_path / "checkpoint-1500/model.safetensors.index.json", json.dumps(index).encode(), NEW)
    assert look(tmp_path)[1] == 500
    assert "lacks model-2.safetensors" in passed_over(tmp_path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"\0" * 5000, "begins with zeros"),
        (b"not a checkpoint at all", "does not begin as torch.save"),
        (archive()[:3000], "is cut off"),
        (archive()[:2000] + archive()[2200:], "index is not where its end says"),
    ],
)
def test_a_corrupt_file_is_passed_over_and_told(data: bytes, why: str, tmp_path: Path) -> None:
    write(tmp_path / "good.pt", archive(), OLD)
    write(tmp_path / "bad.pt", data, NEW)
    assert look(tmp_path)[0] == "good.pt"
    assert why in passed_over(tmp_path)


def test_temporary_names_hidden_folders_and_links_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "out/model.pt", archive(), OLD)
    for name in ("model.pt.tmp", ".model.pt", "tmp-model.pt", "model.pt.partial"):
        write(tmp_path / "out" / name, archive(), NEW)
    write(tmp_path / ".cache/model.pt", archive(), NEW)
    other = write(tmp_path / "elsewhere/x.pt", archive(), NEW)
    (tmp_path / "out/last.ckpt").symlink_to(other)
    (tmp_path / "out/more").symlink_to(tmp_path / "elsewhere")
    assert look(tmp_path, "out")[0] == "out/model.pt"


def test_a_file_that_grows_is_not_complete(tmp_path: Path) -> None:
    write(tmp_path / "step-1.bin", b"x" * 10, OLD)
    growing = write(tmp_path / "step-2.bin", b"x" * 10, NEW)

    def grow(_: float) -> None:
        with growing.open("ab") as file:
            file.write(b"more")
        os.utime(growing, (NEW, NEW))

    looker = Looker(now=lambda: NEW + 1, sleep=grow)
    assert look(tmp_path, "step-*.bin", looker=looker) == ("step-1.bin", 1, "file")
    assert look(tmp_path, "step-*.bin", looker=Looker(now=lambda: NEW + 1, sleep=lambda _: None))[1] == 2


def test_what_a_job_names_may_be_a_file_of_any_name_a_folder_or_a_pattern(tmp_path: Path) -> None:
    write(tmp_path / "state.json", b"{}", NEW)
    assert look(tmp_path, "state.json")[0] == "state.json"
    assert look(tmp_path, str(tmp_path / "state.json"))[0] == "state.json"
    assert look(tmp_path, "nothing/there*")[0] == ""
    assert look(tmp_path)[0] == ""


def test_where_no_path_is_named_what_is_older_than_the_job_is_not_its_own(tmp_path: Path) -> None:
    write(tmp_path / "model.pt", archive(), OLD)
    assert look(tmp_path, since=OLD - 1)[0] == "model.pt"
    assert look(tmp_path, since=OLD + 1)[0] == ""


def test_files_of_one_step_in_a_folder_belong_together(tmp_path: Path) -> None:
    for step, at in ((10, OLD), (20, NEW)):
        write(tmp_path / f"step_{step}/model.pt", archive(), at)
        write(tmp_path / f"step_{step}/optimizer.pt", archive(), at)
    assert look(tmp_path) == ("step_20", 20, "folder")
    write(tmp_path / "step_20/optimizer.pt", archive()[:-3], NEW)
    assert look(tmp_path) == ("step_10", 10, "folder")


def test_the_walk_is_bounded_and_says_so(tmp_path: Path) -> None:
    for number in range(50):
        write(tmp_path / f"d{number}/model.pt", archive(), OLD)
    answer = Looker(entries=20).newest(Wanted(folder=str(tmp_path)))
    assert "not everything was looked at" in answer.passed_over[0]
    deep = tmp_path.joinpath(*("deep",) * 9)
    write(deep / "model.pt", archive(), NEW)
    assert "deep" not in look(tmp_path)[0]


def test_a_pipe_in_the_place_of_a_checkpoint_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pt")
    assert look(tmp_path, "model.pt")[0] == ""
    assert "is no file" in passed_over(tmp_path, "model.pt")


def asked(request: object) -> tuple[int, dict[str, object]]:
    program = [sys.executable, "-I", "-m", "bireme.evidence.checkpoints"]
    done = subprocess.run(program, input=json.dumps(request).encode(), capture_output=True, check=False)
    return done.returncode, json.loads(done.stdout)


def test_the_program_answers_for_many_jobs_and_looks_for_its_own_user_alone(tmp_path: Path) -> None:
    hf(tmp_path / "a", 500, NEW)
    known = {1: str(tmp_path / "a/checkpoint-500"), 2: str(tmp_path / "b/step-1.pt")}
    jobs = [{"id": n, "folder": str(tmp_path), "path": path, "known": known[n]} for n, path in ((1, "a"), (2, "b"))]
    code, told = asked({"owner_uid": os.geteuid(), "jobs": jobs})
    found = {"path": str(tmp_path / "a/checkpoint-500"), "step": 500, "saved_at": NEW, "layout": "hf-trainer"}
    one = {"id": 1, "found": found, "passed_over": [], "gone": False}
    two = {"id": 2, "found": None, "passed_over": [], "gone": True}
    assert (code, told) == (0, {"jobs": [one, two]})
    code, told = asked({"owner_uid": os.geteuid() + 1, "jobs": jobs})
    assert (code, "nobody's files but that user's" in str(told["error"])) == (2, True)
    assert asked({"owner_uid": os.geteuid(), "jobs": [{"id": 1, "folder": "relative"}]})[0] == 2
    assert asked([])[0] == 2
