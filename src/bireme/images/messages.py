"""What is said between who needs an image and the process that fetches it: one request, then lines of JSON.

The request (`Wanted`) goes to standard input; `Progress` comes as often as there is something to show, then exactly one
`Image` or `ImageRefused`. `bireme.agent.fetching` and `bireme images` speak it with `python -m bireme.images`.
Invariant: what comes back was made by a process of the user's: a reader with more rights believes no path in it
(`believed`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

FOR_EVER = float(1 << 53)
"""Until when a digest means what it means."""
MOST_LINE = 4 << 20
"""A longer line is no message: images with that much in their environment cannot be run either."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings `images.*`, as a fetch needs them."""

    cache: str = ""
    """The folder below which every user has one (`folder_of`)."""
    most_bytes: int = 200 << 30
    """How much a user's folder may hold; what was used longest ago makes way, never what runs."""
    largest_bytes: int = 100 << 30
    """An image that unpacks to more is refused."""
    fresh_s: int = 10
    """A tag that was looked up within this time is not asked for again."""
    idle_s: int = 30
    """A registry that says nothing for so long hangs."""
    mirrors: tuple[str, ...] = ()
    """`registry=mirror`: who is asked first."""
    insecure: tuple[str, ...] = ()
    """Registries (and mirrors) that are spoken to without TLS, as `host:port`."""
    parallel: int = 4


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    image: str
    """As the user wrote it."""
    folder: str = "/"
    """What a relative path begins at."""
    policy: Policy = Policy()
    since: float = 0.0
    """What a tag meant first after this moment is what it means: a job names the same one with all its steps. 0: what
    it means now."""
    environment: Mapping[str, str] = {}
    """Of the user's job: where credentials are kept (HOME, DOCKER_CONFIG, ENROOT_CONFIG_PATH ...), which proxy."""


class Progress(msgspec.Struct, frozen=True, tag="progress", omit_defaults=True):
    doing: str
    """`waiting` for another process's pull, `pulling`, `unpacking`."""
    done: int = 0
    of: int = 0
    """Bytes; 0: nobody knows yet."""


class ImageMount(msgspec.Struct, frozen=True, array_like=True):
    """What an image itself wants to have mounted: a folder or file of the machine, or `tmpfs`."""

    source: str
    target: str
    flags: tuple[str, ...] = ()


class Image(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """An image that can be run: a folder that is to be a root, and what its maker says of how to run it."""

    root: str
    read_only: bool = True
    """Whether the folder is shared: whoever wants to write puts something over it. A plain folder is the user's own."""
    environment: Mapping[str, str] = {}
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    workdir: str = ""
    sealed: bool = False
    """It says that nothing may be written to it."""
    mounts: tuple[ImageMount, ...] = ()
    user: str = ""
    architecture: str = ""
    digest: str = ""
    """Of the manifest; empty where the image has none."""
    name: str = ""
    """As people write it."""
    known_until: float = 0.0
    """When its name was seen last to mean this; 0: that is to be looked at each time, as of a file."""
    notice: str = ""
    """What its user is to know of how it was had; empty as a rule."""
    lock: str = ""
    """The file that is held while anything runs in it (`cache.holding`); empty where nothing evicts it."""


class ImageRefused(msgspec.Struct, frozen=True, tag="refused"):
    reason: str
    """One sentence that says what to do."""


Told = Progress | Image | ImageRefused

_wanted = msgspec.json.Decoder(Wanted)
_told: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)


def decode_wanted(data: bytes) -> Wanted:
    return _wanted.decode(data)


def decode_told(line: bytes) -> Told:
    """Raises ValueError (msgspec's errors are)."""
    if len(line) > MOST_LINE:
        raise ValueError("the line is too long")
    return _told.decode(line)


def encode(message: Wanted | Told) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def folder_of(policy: Policy, uid: int) -> str:
    """Where one user's images are kept on this machine."""
    return os.path.join(policy.cache, str(uid))
