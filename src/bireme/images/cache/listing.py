"""What a user's cache holds, as people look at it, and what they have removed from it.

Called by `bireme images`. Invariant: what is in use is neither removed nor counted as removed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bireme.images.cache.eviction import Item, items, sweep, take_away
from bireme.images.cache.store import Cache

_SHORT = 12


@dataclass(frozen=True, slots=True)
class Listed:
    names: tuple[str, ...]
    digest: str
    """Empty for an image that is a file: it has none."""
    size: int
    used_at: float
    made_at: float
    in_use: bool
    architecture: str
    root: str
    key: str

    def answers_to(self, spelled: Collection[str]) -> bool:
        """To one of these spellings: of its names, of its digest or of the beginning of that."""
        value = self.digest.partition(":")[2]
        begun = [each.removeprefix("sha256:") for each in spelled]
        return not set(spelled).isdisjoint(self.names) or any(len(b) >= _SHORT and value.startswith(b) for b in begun)


def listed(cache: Cache) -> Iterator[Listed]:
    """The images, what was used last first."""
    used = {item.name: item.used_at for item in items(cache) if not item.is_blob}
    for key in sorted(used, key=lambda each: -used[each]):
        record = cache.record(key)
        if record is None:
            continue
        yield Listed(
            names=record.names,
            digest=record.image.digest,
            size=record.size,
            used_at=used[key],
            made_at=record.made_at,
            in_use=_is_held(cache.path("roots", key, "lock")),
            architecture=record.image.architecture,
            root=cache.path("roots", key, "root"),
            key=key,
        )


def blob_bytes(cache: Cache) -> int:
    """What is kept besides, of images as they came."""
    return sum(item.size for item in items(cache) if item.is_blob)


def remove_images(cache: Cache, images: Iterable[Listed]) -> Mapping[str, bool]:
    """By key: whether it is gone."""
    with cache.only():
        return {image.key: cache.remove(image.key) for image in images}


def prune(cache: Cache, before: float) -> tuple[list[Item], list[Item]]:
    """Removes what was not used since `before`, and what processes left that are gone: what is gone, what is in use."""
    gone: list[Item] = []
    kept: list[Item] = []
    with cache.only():
        sweep(cache)
        for item in items(cache):
            if item.used_at < before:
                (gone if take_away(cache, item) else kept).append(item)
        cache.forget_meanings()
    return gone, kept


def _is_held(lock: str) -> bool:
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
