"""Makes one folder of an image's layers, in the cache: room for it, the layers in their order, their digests, done.

Called by `fetching`, for whatever has layers (`Layered`). Invariant: what is committed is all of the image; what failed
leaves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from bireme.images.cache.eviction import make_room
from bireme.images.cache.holding import hold
from bireme.images.cache.progress import Meter
from bireme.images.cache.store import Cache, key_of
from bireme.images.elf import check_architecture
from bireme.images.manifests import Config
from bireme.images.messages import Image, Policy
from bireme.images.refusing import RefusedError
from bireme.images.unpacking.bounds import Allowance
from bireme.images.unpacking.decompressing import Ahead, decompressed
from bireme.images.unpacking.layering import Layering
from bireme.images.unpacking.tar_stream import TarStream


@dataclass(frozen=True, slots=True)
class Layered:
    """An image as layers. `open_layer` waits until that one is here, and may raise RefusedError."""

    name: str
    digest: str
    config: Config
    sizes: tuple[int, ...]
    """Of the layers, compressed."""
    open_layer: Callable[[int], BinaryIO]

    def check(self) -> None:
        """Raises RefusedError for what cannot run here, or contradicts itself."""
        check_architecture(self.name, self.config.architecture)
        if self.config.diff_ids and len(self.config.diff_ids) != len(self.sizes):
            raise RefusedError(f"{self.name} has {len(self.sizes)} layers and describes others: push it anew")


def assemble(cache: Cache, layered: Layered, policy: Policy, meter: Meter) -> Image:
    """Raises RefusedError, OSError."""
    layered.check()
    make_room(cache, policy, sum(layered.sizes), what=layered.name)
    allowance = Allowance(min(policy.largest_bytes, policy.most_bytes))
    with new_root(cache, layered.digest) as root:
        lay_all(layered, root, allowance, meter)
    config = layered.config
    image = Image(
        root=root,
        environment=config.environment,
        entrypoint=config.entrypoint,
        command=config.command,
        workdir=config.workdir,
        user=config.user,
        architecture=config.architecture,
        digest=layered.digest,
        name=layered.name,
    )
    return committed(cache, layered.digest, image, allowance.bytes_used, policy)


@contextmanager
def new_root(cache: Cache, digest: str) -> Iterator[str]:
    """An empty root; what was put into it goes away when that fails. Modes are what they are said to be meanwhile."""
    root = cache.begin(digest)
    umask = os.umask(0)
    try:
        yield root
    except BaseException:
        cache.abandon(digest)
        raise
    finally:
        os.umask(umask)


def committed(cache: Cache, digest: str, image: Image, size: int, policy: Policy) -> Image:
    """From now on it is there, and others make way if it has to be."""
    with cache.only():
        done = cache.commit(digest, image, size)
        held = hold(done.lock)
    assert held is not None, "who evicts waits until it is held"
    try:
        make_room(cache, policy, 0, what=done.name)
    except RefusedError:
        os.close(held)
        cache.remove(key_of(digest))
        raise
    os.close(held)
    return done


def lay_all(layered: Layered, root: str, allowance: Allowance, meter: Meter) -> None:
    layering = Layering(root, allowance)
    for number in range(len(layered.sizes)):
        with layered.open_layer(number) as file:
            digest = lay(layering, file, allowance, meter)
        diff_ids = layered.config.diff_ids
        if diff_ids and digest != diff_ids[number]:
            raise RefusedError(f"layer {number + 1} of {layered.name} is not what its description says: push it anew")


def lay(layering: Layering, file: BinaryIO, allowance: Allowance, meter: Meter) -> str:
    """Lays one layer, packed as it came; the digest of what came out."""
    came = came_out = 0

    def count(size: int) -> None:
        nonlocal came
        came += size
        meter.unpacked(size)

    def checked(pieces: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal came_out
        for piece in pieces:
            came_out += len(piece)
            allowance.check_ratio(came, came_out)
            yield piece

    ahead = Ahead(checked(decompressed(file, count)))
    try:
        layering.lay(TarStream(iter(ahead)))
    finally:
        ahead.close()
    return ahead.digest
