"""An OCI layout, a folder or a tar of one: `index.json`, and blobs by their digests.

Called by `fetching` (a folder) and `archive` (a tar). Invariant: the configuration has the digest that the manifest
says, and the layers what the configuration says (`assembling` sums them up).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import BinaryIO

from bireme.images.assembling import Layered
from bireme.images.elf import own_architecture
from bireme.images.manifests import (
    INDEX_TYPES,
    MOST_BYTES,
    Blob,
    choose,
    digest_of,
    is_index,
    read_config,
    read_manifest,
)
from bireme.images.refusing import RefusedError

Open = Callable[[str], BinaryIO]
"""A file of the layout, by its path in it. Raises FileNotFoundError."""


def folder_layout(path: str) -> Layered:
    """Raises RefusedError."""

    def open_(name: str) -> BinaryIO:
        return open(os.path.join(path, name), "rb")

    return layout(path, open_)


def layout(name: str, open_: Open) -> Layered:
    """`name`: as people write it. Raises RefusedError."""
    try:
        with open_("index.json") as file:
            index = file.read(MOST_BYTES)
    except OSError as error:
        raise RefusedError(f"{name} is no OCI layout: its index.json cannot be read") from error
    data = _read(name, open_, _only(index, name))
    for _ in range(2):  # an index of platforms, in an index of names
        if is_index(data, name):
            data = _read(name, open_, choose(data, own_architecture(), name))
    manifest = read_manifest(data, name)
    config = read_config(_read(name, open_, manifest.config), name)

    def open_layer(number: int) -> BinaryIO:
        try:
            return open_(_place(manifest.layers[number]))
        except OSError as error:
            raise _missing(name, manifest.layers[number]) from error

    return Layered(name, manifest.digest, config, tuple(layer.size for layer in manifest.layers), open_layer)


def _only(index: bytes, name: str) -> Blob:
    """The one image that the layout is about, or the one for this machine."""
    try:
        entries = [each for each in json.loads(index)["manifests"] if isinstance(each, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RefusedError(f"{name} is no OCI layout: its index.json cannot be read") from None
    images = [each for each in entries if "platform" not in each or each.get("mediaType") in INDEX_TYPES]
    if len(images) > 1:
        raise RefusedError(f"{name} holds {len(images)} images: copy the one that is meant to a layout of its own")
    document = {"manifests": images or entries}
    return choose(json.dumps(document).encode(), own_architecture(), name)


def _read(name: str, open_: Open, blob: Blob) -> bytes:
    try:
        with open_(_place(blob)) as file:
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise _missing(name, blob) from error
    if digest_of(data, blob.digest) != blob.digest:
        raise RefusedError(f"{name} is damaged ({blob.digest[:19]}... is something else): copy it anew")
    return data


def _place(blob: Blob) -> str:
    return "blobs/" + blob.digest.replace(":", "/")


def _missing(name: str, blob: Blob) -> RefusedError:
    return RefusedError(f"{name} is not whole: {blob.digest[:19]}... is missing or cannot be read; copy it anew")
