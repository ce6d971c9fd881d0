"""Makes room in a user's cache: what was used longest ago goes first, and never what runs or is being fetched.

Called before and after an image is made, and by `bireme images rm` and `prune`. Invariant: when `make_room` returns,
what was asked for fits, by the setting and on the disk.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from bireme.images.cache.store import GONE, NEW, Cache, free_bytes
from bireme.images.messages import Policy
from bireme.images.refusing import RefusedError
from bireme.images.unpacking.beneath import remove
from bireme.images.unpacking.bounds import shown


@dataclass(frozen=True, slots=True)
class Item:
    """Something that can go: an image that was unpacked, or a blob (`is_blob`) as it came, whole or in part."""

    name: str
    size: int
    used_at: float
    is_blob: bool


def items(cache: Cache) -> list[Item]:
    """What was used longest ago first."""
    return sorted((*_images(cache), *_blobs(cache)), key=lambda item: item.used_at)


def make_room(cache: Cache, policy: Policy, need: int, *, what: str) -> None:
    """`need`: bytes that are to come. `what`: for whom, in words. Raises RefusedError."""
    if need > policy.most_bytes:
        most = shown(policy.most_bytes)
        raise RefusedError(f"{what} does not fit: it has {shown(need)}, your images may take {most} (images.most_gib)")
    with cache.only():
        sweep(cache)
        there = items(cache)
        held = sum(item.size for item in there)
        for item in there:
            if held + need <= policy.most_bytes and free_bytes(cache.folder) >= need:
                return
            if take_away(cache, item):
                held -= item.size
        if held + need > policy.most_bytes:
            raise RefusedError(
                f"{what} does not fit: your images may take {shown(policy.most_bytes)} (images.most_gib), "
                f"{shown(held)} are of images that run or are fetched; wait for their jobs, or have that raised"
            )
        if (free := free_bytes(cache.folder)) < need:
            raise RefusedError(
                f"{what} does not fit: it needs {shown(need)}, and {shown(free)} are free in {cache.folder}; "
                "make room, or name another folder in the setting images.cache"
            )


def take_away(cache: Cache, item: Item) -> bool:
    """False when it is in use."""
    return _remove_blob(item.name) if item.is_blob else cache.remove(item.name)


def sweep(cache: Cache) -> None:
    """Removes what processes left that are gone: images that are not whole, or were on their way out."""
    roots = cache.path("roots")
    for name in os.listdir(roots):
        unfinished = name.endswith(NEW) and not cache.is_pulled(name.removesuffix(NEW))
        if unfinished or (name.endswith(GONE) and not _lives(name)):
            remove(os.path.join(roots, name))


def _lives(name: str) -> bool:
    """Whether the process still is there that renamed it, whose number is in the name."""
    return os.path.exists(f"/proc/{name.removesuffix(GONE).rpartition('.')[2]}")


def _images(cache: Cache) -> Iterator[Item]:
    for key in cache.whole():
        record = cache.record(key)
        with suppress(OSError):
            used_at = os.stat(cache.path("roots", key, "lock")).st_mtime
            yield Item(key, record.size if record is not None else 0, used_at, is_blob=False)


def _blobs(cache: Cache) -> Iterator[Item]:
    for algorithm in os.listdir(cache.path("blobs")):
        with os.scandir(cache.path("blobs", algorithm)) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    yield Item(entry.path, about.st_blocks * 512, about.st_mtime, is_blob=True)


def _remove_blob(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # who downloads it has it locked
        os.unlink(path)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        pass
    finally:
        os.close(fd)
    return True
