"""Asking for an image: one process of the user's for all who ask for the same, an answer for each, a hold."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster import python_for_everyone

from bireme.agent.fetching import Ask, Fetched, Images
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import Loop
from bireme.images.cache.holding import hold
from bireme.images.messages import ImageRefused, Policy, Progress

NOBODY = Identity(65534, 65534, (65534,))
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root asks for others")


@pytest.fixture
def loop() -> Iterator[Loop]:
    numbers = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield Loop()
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "image"
    (folder / "etc").mkdir(parents=True)
    (folder / "etc" / "environment").write_text("GREETING='hello there'\nexport PATH=/opt/bin:/bin\n")
    (folder / "etc" / "rc").write_text('#!/bin/sh\ncd "/work" && unset OLDPWD || exit 1\nexec "$@"\n')
    for each in (tmp_path, *tmp_path.parents):  # others are to reach it
        if each.stat().st_uid == os.geteuid() and each.is_relative_to("/tmp") and each != Path("/tmp"):
            each.chmod(0o755)
    return folder


class Asker:
    def __init__(self, loop: Loop, images: Images) -> None:
        self.loop, self.images = loop, images
        self.told: list[Fetched | ImageRefused] = []
        self.heard: list[Progress] = []
        self.wanted = 0
        self.policy = Policy()

    def ask(self, image: str, identity: Identity | None = None, folder: str = "/", begun_at: float = 0.0) -> Ask:
        self.wanted += 1
        heard, done = self.heard.append, self._done
        return self.images.ask(
            image, identity, dict(os.environ), self.policy, folder=folder, begun_at=begun_at, heard=heard, done=done
        )

    def _done(self, outcome: Fetched | ImageRefused) -> None:
        self.told.append(outcome)
        if len(self.told) == self.wanted:
            self.loop.stop()


@pytest.fixture
def asker(loop: Loop, tmp_path: Path) -> Asker:
    return Asker(loop, Images(loop, str(tmp_path / "cache")))


def test_a_folder_is_ready_with_what_it_says_of_itself(asker: Asker, root: Path) -> None:
    asker.ask("./image", folder=str(root.parent))
    asker.ask(str(root))
    asker.loop.run()
    for told in asker.told:
        assert isinstance(told, Fetched)
        assert told.hold_fd == -1
        assert (told.image.root, told.image.read_only) == (str(root), False)
        assert told.image.environment == {"GREETING": "hello there", "PATH": "/opt/bin:/bin"}
        assert (told.image.workdir, told.image.entrypoint) == ("/work", ("/bin/sh", "/etc/rc"))


def test_what_cannot_be_had_is_told_in_a_sentence(asker: Asker, root: Path) -> None:
    asker.ask(str(root / "nothing"))
    asker.ask("docker://UPPER/case")
    asker.loop.run()
    reasons = sorted(told.reason for told in asker.told if isinstance(told, ImageRefused))
    assert reasons[0] == "'UPPER/case': names of images are lower case: upper/case"
    assert reasons[1].endswith("nothing is not there: an image that is a path is looked for on the node of the job")


def test_who_asks_for_the_same_is_told_by_one_process_and_a_job_that_asks_again_by_none(
    asker: Asker, root: Path
) -> None:
    begun_at = time.time()
    for _ in range(5):
        asker.ask(str(root), begun_at=begun_at)
    assert len(asker.loop.children) == 1
    asker.loop.run()
    assert len(asker.told) == 5
    before = set(asker.loop.children)
    asker.ask(str(root), begun_at=begun_at)
    assert set(asker.loop.children) == before
    asker.loop.run()
    assert all(isinstance(told, Fetched) for told in asker.told)
    asker.ask(str(root), begun_at=begun_at + 3600)  # what was here then says nothing of it
    assert set(asker.loop.children) - before
    asker.loop.run()
    asker.policy = Policy(fresh_s=0)
    for _ in range(2):  # a folder may change while a job goes on
        before = set(asker.loop.children)
        asker.ask(str(root), begun_at=begun_at)
        assert set(asker.loop.children) - before
        asker.loop.run()


def test_a_process_that_nobody_waits_for_is_ended_and_tells_nobody(asker: Asker, root: Path) -> None:
    asks = [asker.ask(str(root)) for _ in range(2)]
    (pid,) = asker.loop.children
    for ask in asks:
        ask.cancel()
    asker.wanted = 0
    asker.ask(str(root))  # a new process: the one before is on its way out
    assert len(asker.loop.children) == 2
    asker.loop.run()
    assert len(asker.told) == 1
    while pid in asker.loop.children:  # ends: it was killed, and is collected
        asker.loop.call_later(0.01, asker.loop.stop)
        asker.loop.run()


@as_root
def test_another_users_image_is_read_with_their_rights(
    asker: Asker, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", python_for_everyone(root.parent))
    asker.ask(str(root), NOBODY)
    asker.loop.run()
    root.chmod(0o700)
    asker.images = Images(asker.loop, str(root.parent / "cache"))
    asker.ask(str(root), NOBODY)
    asker.loop.run()
    assert isinstance(asker.told[0], Fetched)
    assert isinstance(asker.told[1], ImageRefused)
    assert "cannot be read: Permission denied" in asker.told[1].reason
    own = root.parent / "cache" / str(NOBODY.uid)
    assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (NOBODY.uid, 0o700)


def test_a_hold_keeps_others_from_having_it_alone_and_is_none_where_it_is_gone(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert hold(str(lock)) is None
    lock.touch()
    held = hold(str(lock))
    assert held is not None
    with lock.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert hold(str(lock)) is None


def test_no_link_of_a_users_leads_a_hold_to_what_is_not_theirs(tmp_path: Path) -> None:
    """The agent may be root, and holds what lies in folders of users'."""
    for name in ("theirs/roots/key", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "lock").touch()
    held = hold(str(tmp_path / "theirs/roots/key/lock"))
    assert held is not None
    os.close(held)
    (tmp_path / "theirs/roots/linked").symlink_to(tmp_path / "elsewhere")
    assert hold(str(tmp_path / "theirs/roots/linked/lock")) is None
    (tmp_path / "theirs/roots/key/lock").unlink()
    (tmp_path / "theirs/roots/key/lock").symlink_to(tmp_path / "elsewhere/lock")
    assert hold(str(tmp_path / "theirs/roots/key/lock")) is None
