"""Asks for images on behalf of tasks: "this image for this user, please", then progress, and ready or refused.

Called by `jobs` and `steps` before anything is started in an image. The work is done by a process of the user's own
(`python -m bireme.images`), which reads credentials and files as the user and is ended when nobody waits for it. Who
asks for the same thing meanwhile waits for the same process; what a job has had it has again without one.
Invariant: `done` is called once, later than `ask` returned, and never after `cancel`. What it gives is held.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace

from bireme.agent.keeping.launching import Launching
from bireme.agent.starting.spawn import Birth, SpawnError
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import READ, Loop
from bireme.agent.system.reaper import ReapedChild
from bireme.images.cache.holding import hold
from bireme.images.messages import (
    MOST_LINE,
    Image,
    ImageRefused,
    Policy,
    Progress,
    Wanted,
    decode_told,
    encode,
    folder_of,
)

_VARIABLES = (
    *("HOME", "USER", "LOGNAME", "PATH", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DOCKER_CONFIG", "ENROOT_CONFIG_PATH"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""What of a job's environment says where its user's credentials are, and how registries are reached."""
_PIECE, _MOST_KNOWN = 1 << 16, 64


@dataclass(frozen=True, slots=True)
class Fetched:
    """An image that is there, and stays while `hold_fd` or a copy of it is open; -1: nothing takes it away."""

    image: Image
    hold_fd: int


Done = Callable[[Fetched | ImageRefused], None]
Heard = Callable[[Progress], None]


@dataclass(slots=True, eq=False)
class Ask:
    """One who waits for an image."""

    heard: Heard
    done: Done
    since: float
    leave: Callable[[Ask], None] = lambda _: None

    def cancel(self) -> None:
        self.leave(self)


@dataclass(frozen=True, slots=True)
class _Key:
    identity: Identity
    image: str
    folder: str
    environment: tuple[tuple[str, str], ...]
    policy: Policy


@dataclass(frozen=True, slots=True)
class _Known:
    """An image that was fetched for who asked with this moment (`Wanted.since`)."""

    since: float
    image: Image
    at: float
    """When, by a clock that nobody sets."""

    def holds_for(self, since: float) -> bool:
        """Whether a fetch would give the same: its name meant nothing else in between."""
        return self.since <= since <= self.image.known_until

    def serves(self, since: float) -> bool:
        """Whether one who waited for the same fetch has what is theirs."""
        return self.holds_for(since) or not self.image.known_until or bool(self.image.notice)


class Images:
    """What the tasks of a node ask for."""

    def __init__(self, loop: Loop, cache: str) -> None:
        """`cache`: where images are kept where a policy does not say."""
        self._loop, self._cache = loop, cache
        self._fetches: dict[_Key, _Fetch] = {}
        self._known: dict[_Key, _Known] = {}

    def ask(
        self,
        image: str,
        identity: Identity | None,
        environment: Mapping[str, str],
        policy: Policy,
        *,
        folder: str,
        begun_at: float,
        heard: Heard,
        done: Done,
    ) -> Ask:
        """`identity`: whom the task runs as; None: the agent's own. `folder`: what a relative path begins at.
        `begun_at`: when the job began, which has the same image from then on, whatever becomes of the tag."""
        known = tuple((name, environment[name]) for name in _VARIABLES if name in environment)
        policy = policy if policy.cache else replace(policy, cache=self._cache)
        key = _Key(identity or Identity.own(), image, folder, known, policy)
        since = begun_at - policy.fresh_s
        if (fetched := self._fetched_before(key, since)) is not None:
            return self._at_once(fetched, heard, done)
        ask = Ask(heard, done, since)
        self._join(key, ask)
        return ask

    def _join(self, key: _Key, ask: Ask) -> None:
        fetch = self._fetches.get(key)
        if fetch is None:
            fetch = _Fetch(self._loop, key, ask.since, self._over)
            self._fetches[key] = fetch
            fetch.begin()
        ask.leave = fetch.leave
        fetch.asks.append(ask)

    def _fetched_before(self, key: _Key, since: float) -> Fetched | None:
        """What was fetched for this job or another, where its name means the same to this one."""
        known = self._known.get(key)
        if known is None or not known.holds_for(since):
            return None
        if not known.image.lock and time.monotonic() - known.at >= key.policy.fresh_s:
            return None  # a folder of the user's, which may have changed
        return held(known.image)

    def _at_once(self, fetched: Fetched, heard: Heard, done: Done) -> Ask:
        def told() -> None:
            done(fetched)

        timer = self._loop.call_later(0.0, told)

        def leave(_: Ask) -> None:
            if timer.callback is not None:
                timer.cancel()
                release(fetched)

        return Ask(heard, done, 0.0, leave)

    def _over(self, fetch: _Fetch, outcome: Image | ImageRefused | None) -> None:
        """`outcome`: None when nobody waited for it any more."""
        if self._fetches.get(fetch.key) is fetch:
            del self._fetches[fetch.key]
        if outcome is None:
            return
        known = _Known(fetch.since, outcome, time.monotonic()) if isinstance(outcome, Image) else None
        if known is not None and known.image.known_until and fetch.asks:
            self._known.pop(fetch.key, None)
            self._known[fetch.key] = known
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
        for ask in fetch.asks:
            if ask.since == fetch.since or known is None or known.serves(ask.since):
                self._loop.guarded(ask.done, _held_or_refused(outcome))
            else:
                self._join(fetch.key, ask)


def _held_or_refused(outcome: Image | ImageRefused) -> Fetched | ImageRefused:
    if isinstance(outcome, ImageRefused):
        return outcome
    return held(outcome) or ImageRefused(f"{outcome.name} was evicted as soon as it was there: raise images.most_gib")


def held(image: Image) -> Fetched | None:
    """The image with a hold on it; None where it is gone."""
    if not image.lock:
        return Fetched(image, -1)
    fd = hold(image.lock)
    return None if fd is None else Fetched(image, fd)


def release(fetched: Fetched) -> None:
    if fetched.hold_fd >= 0:
        os.close(fetched.hold_fd)


@dataclass(slots=True, eq=False)
class _Fetch:
    """One process that fetches, and all who wait for it."""

    _loop: Loop
    key: _Key
    since: float
    _over: Callable[[_Fetch, Image | ImageRefused | None], None]
    asks: list[Ask] = field(default_factory=list)
    _pid: int = 0
    _read_fd: int = -1
    _unread: bytes = b""
    _outcome: Image | ImageRefused | None = None
    _given_up: bool = False

    def begin(self) -> None:
        try:
            _make_folder(self.key.policy, self.key.identity)
            birth, mine, theirs = self._birth()
        except OSError as error:
            self._outcome = ImageRefused(f"no image can be fetched into {self.key.policy.cache}: {error.strerror}")
            self._loop.call_later(0.0, self._end)
            return
        self._read_fd = mine
        launching = Launching(
            self._loop, birth, process=self._has_process, started=self._not_started, exited=self._exited
        )
        try:
            launching.begin()
        finally:
            for fd in theirs:
                os.close(fd)

    def leave(self, ask: Ask) -> None:
        if ask in self.asks:
            self.asks.remove(ask)
        if not self.asks and self._outcome is None and not self._given_up:
            self._given_up = True
            self._over(self, None)
            self._kill()

    def _birth(self) -> tuple[Birth, int, tuple[int, ...]]:
        """What is started, the end of its pipe that is read, and the descriptors that only it needs."""
        wanted = Wanted(
            image=self.key.image,
            folder=self.key.folder,
            since=self.since,
            policy=self.key.policy,
            environment=dict(self.key.environment),
        )
        question = os.memfd_create("wanted", os.MFD_CLOEXEC)  # no pipe, which somebody would have to wait at
        os.write(question, encode(wanted))
        os.lseek(question, 0, os.SEEK_SET)
        read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(write_fd, True)
        null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        birth = Birth(
            argv=[sys.executable, "-I", "-m", "bireme.images"],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=question,
            stdout=write_fd,
            stderr=null_fd,
            identity=self.key.identity,
            umask=0o022,
        )
        return birth, read_fd, (question, write_fd, null_fd)

    def _has_process(self, pid: int) -> None:
        self._pid = pid
        self._loop.watch(self._read_fd, READ, self._readable)

    def _not_started(self, problem: SpawnError | None) -> None:
        if problem is not None and not self._given_up:
            self._pid = 0
            self._outcome = ImageRefused(f"no process could be started that fetches {self.key.image}: {problem}")
            self._end()

    def _readable(self, _events: int) -> None:
        while True:
            try:
                data = os.read(self._read_fd, _PIECE)
            except BlockingIOError:
                return
            if not data:
                self._loop.unwatch(self._read_fd)
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._hear(line)
            if len(self._unread) > MOST_LINE:
                self._kill()
                return

    def _hear(self, line: bytes) -> None:
        try:
            told = decode_told(line)
        except ValueError:
            return
        if isinstance(told, Progress):
            for ask in list(self.asks):
                self._loop.guarded(ask.heard, told)
        elif self._outcome is None and self._is_sound(told):
            self._outcome = told
            self._end()

    def _is_sound(self, told: Image | ImageRefused) -> bool:
        """Whether what the user's process says of paths can be so: it is their process, and this agent may be root."""
        if isinstance(told, ImageRefused) or not told.lock:
            return isinstance(told, ImageRefused) or told.root.startswith("/")
        roots = os.path.join(folder_of(self.key.policy, self.key.identity.uid), "roots")
        place = os.path.dirname(told.lock)
        return os.path.dirname(place) == roots and told.root == f"{place}/root" and ".." not in place.split("/")

    def _exited(self, _reaped: ReapedChild) -> None:
        self._readable(0)
        self._pid = 0
        if self._outcome is None and not self._given_up:
            self._outcome = ImageRefused(f"the process that fetches {self.key.image} ended without an answer")
            self._end()
        self._close()

    def _end(self) -> None:
        """Tells everybody, once. The process may go on for a moment, to write down what it has."""
        assert self._outcome is not None
        self._over(self, self._outcome)
        self.asks.clear()
        if not self._pid:
            self._close()

    def _close(self) -> None:
        if self._read_fd >= 0:
            self._loop.unwatch(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1

    def _kill(self) -> None:
        if not self._pid:
            return
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not come to lead a group yet, or is over
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)


def _make_folder(policy: Policy, identity: Identity) -> None:
    """The user's own folder in the cache. Root makes it for them; nobody else may look into it."""
    folder = folder_of(policy, identity.uid)
    if not os.path.isdir(policy.cache):
        os.makedirs(policy.cache, exist_ok=True)
        os.chmod(policy.cache, 0o711)  # others pass through to their own
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
        if not identity.is_own():
            os.chown(folder, identity.uid, identity.gid)
