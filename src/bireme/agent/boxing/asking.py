"""From "run it in this image" to a box that tasks can enter: asks for the image, has the box built, keeps it.

`jobs` and `steps` ask `Boxes` of their job; boxes with a name are shared by all that ask for it. The image is fetched
by a process of the user's (`fetching`), the box is built by another, below the keeper of the script or step, so that
what ends these ends the wait too. Not here: what a box is made of (`boxes`), what the image is (`bireme.images`).

Invariant: whoever asked is answered once, later than the call, and not after a cancel; descriptors of a box that nobody
uses any more are closed, and with them the box and what was written in it are gone.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from glob import glob

import msgspec
from msgspec.structs import replace

from bireme.agent.boxes.blueprint import Blueprint, Entrance, Mount, NotBuilt, Outcome, Part
from bireme.agent.boxes.building import ROOTS_HOME
from bireme.agent.boxes.commands import BIN
from bireme.agent.boxes.environment import boxed_environment
from bireme.agent.boxes.graphics import CAPABILITIES, CONTROL_DEVICES, DEVICES, is_wanted, visible
from bireme.agent.fetching import Fetched, release
from bireme.agent.keeping.keepers import Keeper
from bireme.agent.keeping.launching import Launching
from bireme.agent.messages.orders import Box
from bireme.agent.node import Node
from bireme.agent.starting.own_box import NAMESPACE_FDS
from bireme.agent.starting.spawn import ANSWER_FD, Birth, SpawnError
from bireme.agent.system.descriptors import receive_fds
from bireme.agent.system.identity import Identity
from bireme.agent.system.loop import READ
from bireme.agent.system.reaper import ReapedChild
from bireme.images.messages import Image, ImageRefused, Progress
from bireme.images.unpacking.bounds import shown

_MOST_ANSWER, _MOST_FDS = 1 << 16, 8
_NAMESPACES = len(NAMESPACE_FDS)
_OTHER_GPUS = ("/dev/kfd", "/dev/dri")
_NOT_BEGUN = Progress("looking for")
_decode: msgspec.json.Decoder[Outcome] = msgspec.json.Decoder(Outcome)


@dataclass(slots=True, eq=False)
class OpenBox:
    """A box that stands while this holds it. `fds`: its namespaces, then, of one that may be saved, its files."""

    name: str
    fetched: Fetched
    fds: list[int]
    remap_root: bool
    users: int = 0

    @property
    def image(self) -> Image:
        return self.fetched.image

    @property
    def files_fd(self) -> int:
        """The folder of all its files, without what is mounted in it; -1: nobody was to ask for it."""
        return self.fds[_NAMESPACES] if len(self.fds) > _NAMESPACES else -1

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()
        release(self.fetched)


@dataclass(frozen=True, slots=True)
class InBox:
    """A wrapper (`starting/wrappers`): the task in this box, as its own options say."""

    box: OpenBox
    order: Box

    def __call__(self, birth: Birth) -> Birth:
        image, order = self.box.image, self.order
        fds = NAMESPACE_FDS
        home = ROOTS_HOME if self.box.remap_root else ""
        return replace(
            birth,
            argv=[*(image.entrypoint if order.entrypoint else ()), *birth.argv],
            env=boxed_environment(birth.env, image.environment, order.kept, BIN, home),
            cwd=order.workdir or image.workdir or "/",
            sure=False,
            extra_fds={**birth.extra_fds, **dict(zip(fds, self.box.fds, strict=False))},
            entrance=Entrance(fds=fds, remap_root=self.box.remap_root),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who wants a box: a script or a step."""

    keeper: Keeper
    birth: Birth
    """Whose rights, variables, folder and cgroups the one who builds has."""
    say: Callable[[str], None]
    """Shows the user a line about the wait."""
    heard: Callable[[str, Progress, str], None]
    """How far the image of this name is, and a line about it now and then, for who draws no bar."""
    interpreter: str = ""
    """Of the script; a step's programs are looked for by name."""
    done: Callable[[InBox | str], None]
    """With the box, to be given back; or with what stands between them and it, as a sentence."""


@dataclass(slots=True, eq=False)
class Wait:
    """One who waits for a box."""

    order: Box
    asker: Asker
    making: _Making | None = None
    over: bool = False

    def cancel(self) -> None:
        self.over = True
        if self.making is not None:
            self.making.leave(self)


class Boxes:
    """Those of one job on this node."""

    def __init__(self, node: Node, identity: Identity | None, denied_devices: tuple[str, ...], begun_at: float) -> None:
        """`begun_at`: when the job began, on whatever node."""
        self._node, self._identity, self._denied, self._begun_at = node, identity, denied_devices, begun_at
        self._named: dict[str, OpenBox] = {}
        self._making: dict[str, _Making] = {}
        self._under_way: list[_Making] = []
        self._suspended = False
        self._kept_back: list[tuple[Wait, OpenBox | str]] = []
        """Answers that came while the job was suspended: nothing of it is to begin before it goes on."""

    def ask(self, order: Box, asker: Asker) -> Wait:
        wait = Wait(order, asker)
        standing, making = self._named.get(order.name), self._making.get(order.name)
        if standing is not None:
            self._node.loop.call_later(0, partial(self._reuse, standing, wait))
        elif making is not None:
            making.join(wait)
        elif not order.image:
            text = f'a container with name "{order.name}" does not exist, and --container-image is not set'
            self._node.loop.call_later(0, partial(self._answer, wait, text))
        elif order.name_flag == "exec":
            text = '"exec" flag was passed to --container-name but the container is not running'
            self._node.loop.call_later(0, partial(self._answer, wait, text))
        else:
            self._make(wait)
        return wait

    def give_back(self, box: OpenBox) -> None:
        """A script or step of it is over. What has a name stays until the job is."""
        box.users -= 1
        self._close_unused(box)

    def _close_unused(self, box: OpenBox) -> None:
        if not box.users and self._named.get(box.name) is not box:
            box.close()

    def awaited(self) -> tuple[str, ...]:
        """How far the images are that somebody waits for, each once."""
        return tuple(dict.fromkeys(making.in_words() for making in self._under_way if making.waits))

    def suspend(self) -> None:
        self._suspended = True

    def resume(self) -> None:
        self._suspended, kept_back, self._kept_back = False, self._kept_back, []
        for wait, outcome in kept_back:
            self._answer(wait, outcome)

    def close(self) -> None:
        """The job is over, and nothing of it is left."""
        self.resume()
        for box in self._named.values():
            box.close()
        self._named.clear()

    def _reuse(self, standing: OpenBox, wait: Wait) -> None:
        if wait.order.name_flag == "create":
            self._answer(wait, '"create" flag was passed to --container-name but the container already exists')
        else:
            self._answer(wait, standing)

    def _make(self, wait: Wait) -> None:
        making = _Making(self._node, self._identity, self._denied, self._begun_at, wait.order, wait.asker, self._made)
        self._under_way = [each for each in self._under_way if each.waits] + [making]
        if wait.order.name:
            self._making[wait.order.name] = making
        making.join(wait)
        making.begin()

    def _made(self, making: _Making, outcome: OpenBox | str) -> None:
        self._under_way.remove(making)
        if self._making.get(making.order.name) is making:
            del self._making[making.order.name]
        waits = [wait for wait in making.waits if not wait.over]
        if isinstance(outcome, OpenBox):
            if not waits:
                outcome.close()
            elif outcome.name:
                self._named[outcome.name] = outcome
        for wait in waits:
            self._answer(wait, outcome)

    def _answer(self, wait: Wait, outcome: OpenBox | str) -> None:
        if wait.over:
            if isinstance(outcome, OpenBox):
                self._close_unused(outcome)
            return
        if self._suspended:
            self._kept_back.append((wait, outcome))
            return
        wait.over = True
        if isinstance(outcome, str):
            self._node.loop.guarded(wait.asker.done, outcome)
            return
        outcome.users += 1
        self._node.loop.guarded(wait.asker.done, InBox(outcome, wait.order))


@dataclass(slots=True, eq=False)
class _Making:
    """One box on its way: its image is fetched, then it is built. `waits`: all who want it; the first pays for it."""

    node: Node
    identity: Identity | None
    denied: tuple[str, ...]
    begun_at: float
    order: Box
    asker: Asker
    made: Callable[[_Making, OpenBox | str], None]
    waits: list[Wait] = field(default_factory=list)
    _progress: Progress = _NOT_BEGUN
    _told: bool = False
    _quarters: int = 0
    _over: bool = False
    _fetched: Fetched | None = None
    _channel: socket.socket | None = None
    _stop: Callable[[], None] = lambda: None

    def join(self, wait: Wait) -> None:
        wait.making = self
        self.waits.append(wait)

    def begin(self) -> None:
        birth = self.asker.birth
        ask = self.node.images.ask(
            self.order.image,
            self.identity,
            birth.env,
            self.order.images,
            folder=birth.cwd,
            begun_at=self.begun_at,
            heard=self._heard,
            done=self._image_came,
        )
        self._stop = ask.cancel

    def leave(self, wait: Wait) -> None:
        self.waits.remove(wait)
        if not self.waits and not self._over:
            self._over = True
            self._stop()

    @property
    def _kind(self) -> str:
        """In Pyxis' words where it comes from a registry."""
        return "image" if self.order.image.startswith(("/", "./", "../")) else "docker image"

    @property
    def _called(self) -> str:
        return f"{self._kind}: {self.order.image}"

    def in_words(self) -> str:
        """`pulling ubuntu:24.04: 45% of 28 MiB`"""
        told = self._progress
        far = f": {100 * told.done // told.of}% of {shown(told.of)}" if told.of else ""
        return f"{told.doing} {self.order.image or self.order.name}{far}"

    def _heard(self, progress: Progress) -> None:
        """Its beginning is told, and every quarter of a long pull."""
        self._progress = progress
        if not self._told and progress.doing != "waiting":
            self._told = True
            self._say(f"importing {self._called}")
        quarter, line = 4 * progress.done // progress.of if progress.doing == "pulling" and progress.of else 0, ""
        if self._quarters < quarter < 4:
            self._quarters = quarter
            line = f"importing {self._kind}: {25 * quarter}% of {shown(progress.of)}"
        for wait in self.waits:
            wait.asker.heard(self.order.image, progress, line)

    def _say(self, text: str) -> None:
        for wait in self.waits:
            wait.asker.say(text)

    def _image_came(self, outcome: Fetched | ImageRefused) -> None:
        self._stop = lambda: None
        if isinstance(outcome, ImageRefused):
            self._end(outcome.reason)
            return
        if self._told:
            self._say(f"imported {self._called}")
        if outcome.image.notice:
            self._say(outcome.image.notice)
        self._fetched = outcome
        try:
            self._build(outcome)
        except (OSError, ValueError) as error:
            release(outcome)
            self._end(f"couldn't start container: {error}")

    def _build(self, fetched: Fetched) -> None:
        asker = self.asker
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._channel = ours
        null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        birth = Birth(
            argv=(),
            env=asker.birth.env,
            stdin=null_fd,
            stdout=null_fd,
            stderr=null_fd,
            cwd=asker.birth.cwd,
            identity=asker.birth.identity,
            join_files=asker.birth.join_files,
            blueprint=self._blueprint(fetched.image, asker.birth.env),
            extra_fds={ANSWER_FD: theirs.fileno()},
        )
        launching = Launching(
            self.node.loop,
            birth,
            process=lambda _pid: None,
            started=self._started,
            exited=self._exited,
            keeper=asker.keeper,
        )
        try:
            launching.begin()
        finally:
            theirs.close()
            os.close(null_fd)
        self.node.loop.watch(ours.fileno(), READ, self._readable)

    def _blueprint(self, image: Image, env: Mapping[str, str]) -> Blueprint:
        order, home = self.order, self.node.settings.home
        graphics = {**image.environment, **{name: env[name] for name in (DEVICES, CAPABILITIES) if name in env}}
        own = [file for file in glob("/dev/nvidia[0-9]*") if file not in self.denied]
        seen = visible(graphics, own)
        devices = (*seen, *CONTROL_DEVICES) if seen else ()
        others = [file for file in _OTHER_GPUS if file not in self.denied]
        parts = [Part(home, home, read_only=True)]
        if env.get("TMPDIR", "").startswith("/") and not env["TMPDIR"].startswith("/tmp"):
            parts.append(Part(env["TMPDIR"], env["TMPDIR"]))
        return Blueprint(
            root=image.root,
            writable=order.writable and not image.sealed,
            remap_root=order.remap_root,
            workdir=order.workdir or image.workdir,
            workdir_asked=bool(order.workdir),
            mount_home=order.mount_home,
            mounts=(*(Mount(each.source, each.target, each.flags) for each in image.mounts), *order.mounts),
            interpreter=self.asker.interpreter,
            commands_of=home,
            parts=tuple(parts),
            devices=(*devices, *others),
            graphics=graphics if own and is_wanted(graphics) else None,
            saved=bool(order.save or order.name),
            saved_at=order.save,
        )

    def _started(self, problem: SpawnError | None) -> None:
        if problem is not None:
            self._hang_up()
            self._refuse(f"couldn't start container: {problem}")

    def _exited(self, _reaped: ReapedChild) -> None:
        self._readable(0)
        if self._channel is not None:
            self._hang_up()
            self._refuse("couldn't start container: the process that builds it ended")

    def _readable(self, _events: int) -> None:
        if self._channel is None:
            return
        try:
            data, fds, _ = receive_fds(self._channel, _MOST_ANSWER, _MOST_FDS)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self._hang_up()
        outcome = _read(data)
        if isinstance(outcome, NotBuilt) or len(fds) < _NAMESPACES:
            for fd in fds:
                os.close(fd)
            self._refuse(outcome.reason if isinstance(outcome, NotBuilt) else "couldn't start container")
            return
        assert self._fetched is not None
        for note in outcome.notes:
            self._say(note)
        self._end(OpenBox(self.order.name, self._fetched, fds, self.order.remap_root))

    def _refuse(self, why: str) -> None:
        assert self._fetched is not None
        release(self._fetched)
        self._end(why)

    def _hang_up(self) -> None:
        if self._channel is not None:
            self.node.loop.unwatch(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def _end(self, outcome: OpenBox | str) -> None:
        if self._over and isinstance(outcome, OpenBox):
            outcome.close()
        elif not self._over:
            self._over = True
            self.made(self, outcome)


def _read(data: bytes) -> Outcome:
    try:
        return _decode.decode(data)
    except msgspec.DecodeError:
        return NotBuilt("couldn't start container: the process that builds it ended")
