"""`bireme images`: what is there, pulled, removed, pruned; what runs stays, and mistakes are told in a sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.images import Made, Put, tar_of

from bireme.cli.images.command import main
from bireme.images.cache.holding import hold

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("BIREME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BIREME_IMAGES_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def run_(*words: str) -> tuple[int, str, str]:
        try:
            code = main(list(words))
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run_


def image(folder: Path, name: str) -> str:
    Made([tar_of(Put("bin/data", name.encode() * 50_000))]).to_layout(folder / name)
    return f"./{name}"


def test_images_are_pulled_listed_and_removed(run: Run, tmp_path: Path) -> None:
    code, out, _ = run()
    assert (code, out) == (0, f"0 B of 200 GiB in {tmp_path}/cache/{os.geteuid()}, 0 B of it layers as they came\n")
    assert run("pull", image(tmp_path, "one"), image(tmp_path, "two"))[:2] == (
        0,
        "".join(f"{tmp_path}/{name} is here ({_digest(name)})\n" for name in ("one", "two")),
    )
    told = json.loads(run("list", "--json")[1])
    assert {each["names"][0] for each in told["images"]} == {f"{tmp_path}/one", f"{tmp_path}/two"}
    one = next(each for each in told["images"] if each["names"] == [f"{tmp_path}/one"])
    assert one["size"] == 150_000
    held = hold(f"{Path(one['root']).parent}/lock")
    assert held is not None
    assert "runs  " in run("list")[1]
    code, out, err = run("rm", "./one", f"{tmp_path}/two")
    assert (code, out) == (1, f"removed {tmp_path}/two (146 KiB)\n")
    assert (
        err == f"bireme images: error: {tmp_path}/one stays: something runs in it; remove it when its jobs have ended\n"
    )
    assert run("prune")[1].endswith("; 1 stay, in which something runs\n")
    os.close(held)
    assert run("prune", "--older-than", "3")[1] == "removed 0 images and 0 layers, 0 B\n"
    assert json.loads(run("rm", "--json", one["digest"][7:19])[1])["removed"][0]["digest"] == one["digest"]
    assert json.loads(run("--json")[1])["images"] == []


def _digest(name: str) -> str:
    return Made([tar_of(Put("bin/data", name.encode() * 50_000))]).digest


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rm", "ubuntu"], "there is no image 'ubuntu' here; see `bireme images`"),
        (["pull", "./nothing"], "is not there: an image that is a path"),
        (["pull", "A:b"], "names of images are lower case"),
        (["prune", "--older-than", "x"], "'x' is not a number of days"),
        (["prun"], "invalid choice: 'prun'"),
    ],
)
def test_mistakes_are_told_in_a_sentence(run: Run, words: list[str], sentence: str) -> None:
    code, out, err = run(*words)
    assert code != 0
    assert out == ""
    assert sentence in err
    assert "Traceback" not in err


def test_settings_that_are_none_are_told_by_their_names(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIREME_IMAGES_MIRRORS", "docker.io")
    assert "images.mirrors: 'docker.io' is not REGISTRY=HOST:PORT" in run()[2]
    monkeypatch.setenv("BIREME_IMAGES_MIRRORS", "")
    monkeypatch.setenv("BIREME_IMAGES_DOWNLOADS", "999")
    assert "images.downloads: 999 is not possible: it must be from 1 to 64" in run()[2]
