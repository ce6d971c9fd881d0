"""What the kernel is asked about mounts and namespaces: one small function for each call, errors as OSError.

Used by `confining/namespaces` and `boxes`. The calls of the newer mount interface (`open_tree`, `move_mount`,
`mount_setattr`, `openat2`: Linux 5.12) work on descriptors, so that no path of a user's is looked up twice.
Invariant: nothing here decides anything, and what is asked of a path is asked of it inside the root that is given.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from enum import IntFlag
from functools import cache

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
MS_BIND, MS_REC, MS_SLAVE, MS_NOSUID, MS_NODEV = 0x1000, 0x4000, 0x80000, 0x2, 0x4

_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
"""The same number on every architecture: they are younger than the common table."""
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "s390x": 217, "riscv64": 41}
_OPEN_TREE_CLONE, _AT_RECURSIVE, _AT_EMPTY_PATH = 0x1, 0x8000, 0x1000
_MOVE_FROM_FD, _MOVE_TO_FD = 0x4, 0x40
_RESOLVE_IN_ROOT, _RESOLVE_NO_MAGICLINKS = 0x10, 0x02
_MNT_DETACH = 0x2
_PR_SET_DUMPABLE = 4


class Attribute(IntFlag):
    """What a mount is to be besides being there."""

    READ_ONLY = 0x1
    NO_SETUID = 0x2
    NO_DEVICES = 0x4
    NO_EXECUTION = 0x8


@cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Raises OSError with `what` for its file name where the call said -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def unshare(flags: int) -> None:
    check(libc().unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    check(libc().setns(fd, kind), "setns")


def be_dumpable() -> None:
    """The files in /proc/self are this process's own user's, also after it has become another."""
    check(libc().prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(1), 0, 0, 0), "prctl")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    named = kind.encode() if kind is not None else None
    given = options.encode(errors="surrogateescape") if options else None
    paths = os.fsencode(source), os.fsencode(target)
    check(libc().mount(*paths, named, ctypes.c_ulong(flags), given), f"mount {kind or source}")


def keep_mounts_private() -> None:
    """What is mounted from here on in this namespace is not seen outside."""
    mount("none", "/", None, MS_REC | MS_SLAVE)


def unmount(path: str) -> None:
    check(libc().umount2(os.fsencode(path), _MNT_DETACH), "umount")


def map_ids(uid: int, gid: int, *, to_root: bool = False) -> None:
    """In a new user namespace: who had these numbers outside has them inside too, or is root there."""
    # The kernel takes a gid_map from an ordinary user only once setgroups is given up.
    inside_uid, inside_gid = (0, 0) if to_root else (uid, gid)
    texts = {"setgroups": "deny", "uid_map": f"{inside_uid} {uid} 1", "gid_map": f"{inside_gid} {gid} 1"}
    for file, text in texts.items():
        # As bytes: for a text Python would load a codec, from files that this user may not be able to read.
        fd = os.open(f"/proc/self/{file}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


def clone_tree(source: int, *, recursive: bool) -> int:
    """A copy of the mount that this descriptor (O_PATH) is in, from its place on, attached nowhere."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    return check(_syscall(_OPEN_TREE, ctypes.c_int(source), b"", ctypes.c_uint(flags)), "open_tree")


def set_attributes(tree: int, attributes: int, *, recursive: bool) -> None:
    value = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    size = ctypes.c_size_t(len(value))
    check(_syscall(_MOUNT_SETATTR, ctypes.c_int(tree), b"", ctypes.c_uint(flags), value, size), "mount_setattr")


def attach(tree: int, place: int) -> None:
    """Mounts what `clone_tree` gave at the place that a descriptor stands for."""
    flags = ctypes.c_uint(_MOVE_FROM_FD | _MOVE_TO_FD)
    check(_syscall(_MOVE_MOUNT, ctypes.c_int(tree), b"", ctypes.c_int(place), b"", flags), "move_mount")


def open_in_root(root: int, path: str, flags: int) -> int:
    """As if `root` were `/`: neither `..` nor a link leads out of it. Raises OSError."""
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    size = ctypes.c_size_t(len(how))
    return check(_syscall(_OPENAT2, ctypes.c_int(root), os.fsencode(path), how, size), path)


def become_root_of_all(root: int) -> None:
    """This mount becomes the process's and its namespace's root; all that was there before is let go."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "pivot_root")
    os.fchdir(root)
    check(_syscall(number, b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def _syscall(number: int, *arguments: object) -> int:
    return int(libc().syscall(ctypes.c_long(number), *arguments))
