"""An image in one tar: what `docker save` and `podman save` write, or an OCI layout that was packed.

Called by `fetching`. The tar is not unpacked: its members are read where they lie. One that is compressed as a whole is
decompressed into the cache first.
Invariant: a member is found by its exact name, and no more of it is read than is there.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO, Any, BinaryIO, cast

from bireme.images.assembling import Layered
from bireme.images.manifests import MOST_BYTES, digest_of, read_config
from bireme.images.refusing import RefusedError
from bireme.images.sources.layout import layout
from bireme.images.unpacking.bounds import Allowance
from bireme.images.unpacking.decompressing import decompressed

_MOST_MEMBERS = 100_000


@contextmanager
def opened_archive(path: str, most_bytes: int, folder: str) -> Iterator[Layered]:
    """`folder`: where one that is compressed is laid meanwhile, up to `most_bytes`. Raises RefusedError."""
    with _plain(path, most_bytes, folder) as file:
        members = _members(path, file)

        def open_(name: str) -> BinaryIO:
            if name not in members:
                raise FileNotFoundError(name)
            start, size = members[name]
            return cast(BinaryIO, io.BufferedReader(_Part(file, start, size), 1 << 20))

        if "manifest.json" in members:
            yield _saved(path, open_("manifest.json"), open_)
        elif "index.json" in members:
            yield layout(path, open_)
        else:
            raise RefusedError(f"{path} is a tar, and no image: make one with `docker save -o image.tar IMAGE`")


def _saved(path: str, listed: BinaryIO, open_: Any) -> Layered:
    """As Docker saves: a configuration, and the layers as tars."""
    try:
        entries = json.loads(listed.read(MOST_BYTES))
        names = [str(tag) for each in entries for tag in each.get("RepoTags") or ()]
        if len(entries) != 1:
            raise RefusedError(f"{path} holds {len(entries)} images ({', '.join(names)[:200]}): save one alone")
        config_name, layers = str(entries[0]["Config"]), [str(each) for each in entries[0]["Layers"]]
        config = open_(config_name).read(MOST_BYTES)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise RefusedError(f"{path} is not whole: its manifest.json cannot be read; save it anew") from error

    def open_layer(number: int) -> BinaryIO:
        try:
            return cast(BinaryIO, open_(layers[number]))
        except OSError as error:
            raise RefusedError(f"{path} is not whole: {layers[number][:80]} is missing; save it anew") from error

    sizes = []
    for number in range(len(layers)):
        with open_layer(number) as layer:
            sizes.append(layer.seek(0, os.SEEK_END))
    return Layered(path, digest_of(config), read_config(config, path), tuple(sizes), open_layer)


def _members(path: str, file: BinaryIO) -> dict[str, tuple[int, int]]:
    """By name: where it begins, and how long it is."""
    found: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.isreg():
                    found[member.name.removeprefix("./")] = (member.offset_data, member.size)
                elif member.issym():  # older Dockers write a layer that two images share once
                    links[member.name] = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
                if len(found) > _MOST_MEMBERS:
                    raise RefusedError(f"{path} is a tar, and no image: it has more than {_MOST_MEMBERS} files")
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise RefusedError(f"{path} is no tar that can be read ({error}): save it anew") from error
    return found | {name: found[target] for name, target in links.items() if target in found}


@contextmanager
def _plain(path: str, most_bytes: int, folder: str) -> Iterator[BinaryIO]:
    with open(path, "rb") as file:
        head = file.read(2)
        file.seek(0)
        if head not in (b"\x1f\x8b", b"\x28\xb5"):
            yield file
            return
        allowance, came = Allowance(most_bytes), 0

        def count(size: int) -> None:
            nonlocal came
            came += size

        with TemporaryFile(dir=folder) as plain:
            for piece in decompressed(file, count):
                allowance.take_entry(len(piece))
                allowance.check_ratio(came, allowance.bytes_used)
                plain.write(piece)
            plain.seek(0)  # and out of its buffer: parts of it are read beside it
            yield cast(BinaryIO, plain)


class _Part(io.RawIOBase):
    """So many bytes of a file, from somewhere on, as a file of its own; several may read the same one."""

    def __init__(self, file: IO[bytes], start: int, size: int) -> None:
        self._fd, self._start, self._size, self._at = file.fileno(), start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._fd, min(len(buffer), max(0, self._size - self._at)), self._start + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
