"""What registries and layouts say of an image: indexes, manifests, configurations, Docker's kinds and OCI's. Pure.

Called by `sources`. Invariant: what is read has the shape it must have; sizes and digests in it are claims, which
whoever fetches the bytes checks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bireme.images.refusing import RefusedError

MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MOST_BYTES = 4 << 20
"""Of a manifest, index or configuration."""
_MOST_LAYERS = 1000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_FOREIGN = "nondistributable", "foreign"


@dataclass(frozen=True, slots=True)
class Blob:
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    config: Blob
    layers: tuple[Blob, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Config:
    """What an image's maker says of how to run it, and what its layers are when they are unpacked."""

    diff_ids: tuple[str, ...]
    architecture: str
    environment: Mapping[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    workdir: str
    user: str


def digest_of(data: bytes, like: str = "sha256:") -> str:
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


def read_manifest(data: bytes, name: str) -> Manifest:
    """Raises RefusedError."""
    document = _document(data, name)
    if document.get("schemaVersion") == 1 or "fsLayers" in document:
        raise RefusedError(f"{name} is in a format of before 2016 (schema 1): push it anew with a newer Docker")
    layers = document.get("layers")
    if not isinstance(layers, list) or len(layers) > _MOST_LAYERS:
        raise RefusedError(f"{name} is no container image: its manifest names no layers")
    return Manifest(_blob(document.get("config"), name), tuple(_layer(each, name) for each in layers), digest_of(data))


def is_index(data: bytes, name: str) -> bool:
    return isinstance(_document(data, name).get("manifests"), list)


def choose(data: bytes, architecture: str, name: str) -> Blob:
    """The manifest for this machine's processors of an index. Raises RefusedError."""
    entries = [each for each in _document(data, name)["manifests"] if isinstance(each, dict)]
    found: dict[str, Blob] = {}
    for each in entries:
        platform = each.get("platform") or {}
        if not isinstance(platform, dict) or platform.get("os", "linux") != "linux":
            continue
        found.setdefault(str(platform.get("architecture") or architecture), _blob(each, name))
    if architecture not in found:
        there = ", ".join(sorted(key for key in found if key != "unknown")) or "none for Linux"
        raise RefusedError(
            f"{name} is not made for this machine's processors ({architecture}); it is there for: {there}"
        )
    return found[architecture]


def read_config(data: bytes, name: str) -> Config:
    """Raises RefusedError."""
    document = _document(data, name)
    run = document.get("config") or {}
    rootfs = document.get("rootfs") or {}
    if not isinstance(run, dict) or not isinstance(rootfs, dict):
        raise RefusedError(f"{name} has a configuration that cannot be read: push it anew")
    return Config(
        diff_ids=_words(rootfs.get("diff_ids"), name),
        architecture=str(document.get("architecture") or ""),
        environment=dict(each.split("=", 1) for each in _words(run.get("Env"), name) if "=" in each),
        entrypoint=_words(run.get("Entrypoint"), name),
        command=_words(run.get("Cmd"), name),
        workdir=str(run.get("WorkingDir") or ""),
        user=str(run.get("User") or ""),
    )


def _document(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise RefusedError(f"{name} is no container image: what describes it cannot be read")
    return document


def _blob(entry: Any, name: str) -> Blob:
    digest = entry.get("digest") if isinstance(entry, dict) else None
    size = entry.get("size") if isinstance(entry, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0:
        raise RefusedError(f"{name} is no container image: its manifest names a part without digest and size")
    return Blob(digest, size)


def _layer(entry: Any, name: str) -> Blob:
    kind = str(entry.get("mediaType") or "") if isinstance(entry, dict) else ""
    if any(word in kind for word in _FOREIGN):
        raise RefusedError(f"{name} has layers that its registry may not hand out ({kind}): it cannot be pulled")
    if "encrypted" in kind:
        raise RefusedError(f"{name} has encrypted layers: decrypt it (skopeo copy --decryption-key) and push it again")
    return _blob(entry, name)


def _words(value: Any, name: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):  # as Docker wrote CMD of one word long ago
        return (value,)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise RefusedError(f"{name} has a configuration that cannot be read: push it anew")
    return tuple(value)
