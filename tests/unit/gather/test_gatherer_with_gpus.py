"""The gatherer as a process, with cards that follow a script: what reaches the daemon of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bireme.gather import messages as m


class Listener:
    """A daemon that welcomes one gatherer, and keeps nothing."""

    def __init__(self, path: str) -> None:
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(path)
        self._door.listen()
        self._door.settimeout(60)
        self._splitter = m.FrameSplitter()
        self._told: list[m.AnyTold] = []
        self._line: socket.socket | None = None

    def welcome(self) -> None:
        self._line, _ = self._door.accept()
        self._line.settimeout(60)
        assert isinstance(self.next(), m.Hello)
        self._line.sendall(m.encode(m.Welcome(interval_s=1.0)))

    def next(self) -> m.AnyTold:
        assert self._line is not None
        while not self._told:
            data = self._line.recv(65536)
            assert data, "the gatherer ended"
            self._told += [m.read_told(body) for body in self._splitter.feed(data)]
        return self._told.pop(0)

    def rounds_until(self, good: Callable[[m.Round], object]) -> list[m.Round]:
        """The last of which is so; a round comes every second."""
        rounds: list[m.Round] = []
        while len(rounds) < 60:
            told = self.next()
            if isinstance(told, m.Round):
                rounds.append(told)
                if good(told):
                    return rounds
        raise AssertionError(f"never: {rounds[-1]}")

    def close(self) -> None:
        for each in (self._line, self._door):
            if each is not None:
                each.close()


class Scene:
    """The script's file, written whole."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.cards: list[dict[str, Any]] = [
            {
                "uuid": "GPU-0",
                "bus": "00000000:01:00.0",
                "values": {"gpu_power": 70.0, "gpu_util": 9, "gpu_copy_util": 1},
            },
            {"uuid": "GPU-1", "bus": "00000000:02:00.0", "values": {"gpu_power": 80.0}},
        ]
        self.play()

    def play(self) -> None:
        following = self._file.with_suffix(".next")
        following.write_text(json.dumps({"cards": self.cards}))
        following.replace(self._file)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "script.json")


@pytest.fixture
def daemon(tmp_path: Path, scene: Scene) -> Iterator[Listener]:
    listener = Listener(str(tmp_path / "daemon.sock"))
    (tmp_path / "agents").mkdir()
    words = ["--folder", tmp_path / "gatherer", "--agents", tmp_path / "agents", "--daemon", tmp_path / "daemon.sock"]
    variables = {
        "BIREME_NVML_MODULE": "bireme.testing.scripted_nvml",
        "BIREME_NVML_SCRIPT": str(tmp_path / "script.json"),
    }
    gatherer = subprocess.Popen(
        [sys.executable, "-m", "bireme.gather", *map(str, words), "--machine", "box", "--log", str(tmp_path / "log")],
        env={**os.environ, **variables},
    )
    try:
        listener.welcome()
        yield listener
    finally:
        gatherer.terminate()
        assert gatherer.wait(60) == 0, (tmp_path / "log").read_text()
        listener.close()


def columns(told: m.Round) -> dict[str, dict[str, Any]]:
    """Values by GPU; those that are not measured are not there."""
    (frame,) = [frame for frame in told.frames if frame.about == "gpu"] or [None]
    if frame is None:
        return {}
    rows = {
        uuid: {name: column[place] for name, column in frame.columns.items()} for place, uuid in enumerate(frame.ids)
    }
    return {uuid: {name: value for name, value in row.items() if value is not None} for uuid, row in rows.items()}


def answers(told: m.Round) -> dict[str, Any]:
    return {uuid: row["gpu_answers"] for uuid, row in columns(told).items()}


def test_the_daemon_hears_of_cards_strays_hangs_losses_and_errors(daemon: Listener, scene: Scene) -> None:
    seen = columns(daemon.rounds_until(lambda told: answers(told) == {"GPU-0": 1, "GPU-1": 1})[-1])
    assert seen["GPU-0"]["gpu_util"] == 9
    assert "gpu_util" not in seen["GPU-1"], "not measured is absent"

    scene.cards[0]["processes"] = [{"pid": os.getpid(), "memory_mib": 512}]
    scene.cards[0]["xids"] = [43]
    scene.play()
    rounds = daemon.rounds_until(lambda told: any(each.kind == "stray" for each in told.happenings))
    assert columns(rounds[-1])["GPU-0"]["gpu_unowned_memory"] == 512
    told = {each.kind: each for one in rounds for each in one.happenings}
    assert (told["stray"].uuid, told["stray"].pid, told["stray"].node) == ("GPU-0", os.getpid(), "box")
    assert "512 MiB" in told["stray"].text
    assert (told["xid"].uuid, told["xid"].code) == ("GPU-0", 43)

    scene.cards[1]["hangs"] = ["nvmlDeviceGetPowerUsage"]
    scene.play()
    hanging = daemon.rounds_until(lambda told: answers(told) == {"GPU-0": 1, "GPU-1": 0})[-1]
    assert columns(hanging)["GPU-1"] == {"gpu_answers": 0}

    scene.cards[1] |= {"hangs": [], "lost": True}
    scene.play()
    rounds = daemon.rounds_until(lambda told: any(each.kind == "gpu lost" for each in told.happenings))
    assert answers(rounds[-1]) == {"GPU-0": 1, "GPU-1": 0}
    scene.cards[1]["lost"] = False
    scene.play()
    rounds = daemon.rounds_until(lambda told: any(each.kind == "gpu back" for each in told.happenings))
    assert answers(rounds[-1]) == {"GPU-0": 1, "GPU-1": 1}
