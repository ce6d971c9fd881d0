"""A job's output read by a process of its owner's: what it answers, and what it may cost."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from bireme.agent.system.identity import Identity
from bireme.api import owner_reading
from bireme.api.owner_reading import UnreadError, read_as_owner

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB\n"
)


def read(path: Path, owner: Identity | None = None) -> dict[str, Any]:
    outputs = [{"path": str(path), "rank": 3, "node": "n1", "stream": "out"}]
    return asyncio.run(read_as_owner(owner or Identity.own(), outputs, ""))


def test_clues_of_an_output(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    log.write_text(f"step 1\n{OOM}")
    told = read(log)
    assert {clue["rule"] for clue in told["clues"]} >= {"torch-gpu-oom"}
    (line,) = {(clue["line"]["number"], clue["line"]["rank"], clue["line"]["node"]) for clue in told["clues"]}
    assert line == (2, 3, "n1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="needs a Python that everybody may run")
def test_what_its_owner_may_not_read_is_not_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    nobody = pwd.getpwnam("nobody")
    folder = tmp_path_factory.mktemp("theirs")
    os.chmod(folder, 0o755)
    secret = folder / "secret"
    secret.write_text(OOM)
    os.chmod(secret, 0o600)
    link = folder / "slurm-1.out"
    link.symlink_to(secret)
    try:
        told = read(link, Identity(nobody.pw_uid, nobody.pw_gid, (nobody.pw_gid,)))
    except UnreadError:
        return  # the environment of these tests is root's alone: then nothing is read at all
    assert told["clues"] == []
    assert told["problems"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may become anybody")
def test_without_root_nobody_else_can_be_read_for() -> None:
    with pytest.raises(UnreadError, match="not root"):
        read(Path("/etc/hosts"), Identity(1, 1))


def program(tmp_path: Path, text: str) -> str:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo nonsense", "without an answer"),
        ("exit 1", "without an answer"),
        ("""echo '{"error": "no"}'""", "^no$"),
        ("""echo '["a list"]'""", "without an answer"),
        ("cat /dev/zero", "too long"),
        ("exec sleep 1000", "could not be read within"),
        ("setsid sleep 1000 & echo $! > {folder}/pid", "could not be read within"),
    ],
    ids=["nonsense", "ends", "says why", "a list", "without end", "hangs", "leaves a child with its pipe"],
)
def test_an_answer_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str) -> None:
    monkeypatch.setattr(sys, "executable", program(tmp_path, text.replace("{folder}", str(tmp_path))))
    monkeypatch.setattr(owner_reading, "LIMIT_S", 1.0 if "sleep" in text else 30.0)
    with pytest.raises(UnreadError, match=why):
        read(tmp_path / "none")
    if (tmp_path / "pid").exists():
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_program_that_cannot_be_started_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(UnreadError, match="No such file"):
        read(tmp_path / "none")


def test_who_has_left_is_not_read_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither begun nor gone on with."""
    monkeypatch.setattr(sys, "executable", program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000"))
    monkeypatch.setattr(owner_reading, "_GONE_EVERY_S", 0.01)
    with pytest.raises(UnreadError, match="nobody waits"):
        asyncio.run(read_as_owner(Identity.own(), [], "", lambda: True))
    assert not (tmp_path / "pid").exists()
    with pytest.raises(UnreadError, match="nobody waits"):
        asyncio.run(
            read_as_owner(
                Identity.own(), [], "", lambda: bool((tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
            )
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
