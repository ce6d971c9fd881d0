"""An image in a registry, as layers: several come at once, and each is laid as soon as it and those below are here.

Called by `fetching`. Invariant: no thread that downloads outlives `brought` for longer than one wait for the registry.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import BinaryIO

from bireme.images.assembling import Layered
from bireme.images.cache.progress import Meter
from bireme.images.cache.store import Cache
from bireme.images.elf import own_architecture
from bireme.images.manifests import Blob, Manifest, choose, is_index, read_config, read_manifest
from bireme.images.messages import Policy
from bireme.images.refusing import RefusedError
from bireme.images.registry.client import RegistryClient
from bireme.images.registry.download import Download


def resolve(client: RegistryClient, name: str, digest: str = "") -> Manifest:
    """The manifest for this machine of what a name, or a digest, means. Raises RefusedError."""
    data = client.manifest(digest)
    if is_index(data, name):
        data = client.manifest(choose(data, own_architecture(), name).digest)
    if is_index(data, name):
        raise RefusedError(f"{name} is a list of lists: it cannot be read, push it anew")
    return read_manifest(data, name)


@contextmanager
def brought(
    client: RegistryClient, manifest: Manifest, cache: Cache, policy: Policy, meter: Meter, name: str
) -> Iterator[Layered]:
    """The image with its layers under way. Raises RefusedError, as `open_layer` does."""
    config = read_config(client.small_blob(manifest.config), name)
    sizes = tuple(layer.size for layer in manifest.layers)
    meter.expect(sum(sizes))
    stop = threading.Event()
    pool = ThreadPoolExecutor(max(1, policy.parallel), thread_name_prefix="download")
    waiting: list[Future[BinaryIO]] = []

    def open_layer(number: int) -> BinaryIO:
        if not waiting:
            waiting.extend(pool.submit(one.run) for one in map(download, manifest.layers))
        return waiting[number].result()

    def download(blob: Blob) -> Download:
        return Download(client, blob, cache.blob(blob.digest), name, meter.came, stop)

    try:
        yield Layered(name, manifest.digest, config, sizes, open_layer)
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for future in waiting:
            if future.done() and not future.cancelled():
                with suppress(Exception):
                    future.result().close()
