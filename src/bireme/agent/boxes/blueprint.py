"""What a box is to be, and the way into one: values that travel to the process that builds or enters it.

A box is a set of namespaces in which a folder is the root: the image below, what is written in memory over it, and the
parts of the machine that programs need. `boxing` makes the blueprint from an order and an image, `building` carries it
out in a child that has the user's rights, `entering` is what each task does. Not here: where images come from.
Invariant: a blueprint is complete; whoever builds asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

UMOUNT = "umount"
TMPFS = "tmpfs"
"""Sources of mounts that are no folder, as Pyxis writes them."""


class Mount(msgspec.Struct, frozen=True, array_like=True):
    """`--container-mounts`: what lies at `source` of the machine, seen at `target` of the box."""

    source: str
    target: str
    flags: tuple[str, ...] = ()


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A file or folder of the machine that belongs into the box where it is there: passed over where it is not."""

    source: str
    target: str
    read_only: bool = False


class Blueprint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    root: str
    """The folder of the image."""
    writable: bool = True
    """What is written is kept in memory while anything runs in the box; else the image cannot be written to."""
    remap_root: bool = False
    """The user is root inside, by name only."""
    workdir: str = ""
    """Where its tasks begin; made where it is not there, unless it was asked for."""
    workdir_asked: bool = False
    mount_home: bool = False
    """The user's home folder is the machine's; else an empty one of its name."""
    mounts: tuple[Mount, ...] = ()
    parts: tuple[Part, ...] = ()
    interpreter: str = ""
    """Of the script that is to run in it: said to be missing now, since whoever executes the script cannot."""
    commands_of: str = ""
    """The home of the cluster whose commands are to be had inside."""
    devices: tuple[str, ...] = ()
    """Device files and folders of them, besides those of every box."""
    graphics: Mapping[str, str] | None = None
    """The variables that say which parts of NVIDIA's driver are wanted; None: none are."""
    saved: bool = False
    """A way to its files from outside is kept, to save them."""
    saved_at: str = ""
    """Where that will be; looked at before anything is built, not after hours of work."""


class Entrance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The way of a task into a box that stands. `fds`: numbers of its descriptors in the child, in the order of
    `KINDS`."""

    fds: tuple[int, ...]
    remap_root: bool = False


class Built(msgspec.Struct, frozen=True, kw_only=True, tag="built"):
    """A box stands; its namespaces travel beside this."""

    workdir: str
    notes: tuple[str, ...] = ()


class NotBuilt(msgspec.Struct, frozen=True, tag="not_built"):
    reason: str


Outcome = Built | NotBuilt
