"""One user's folder of the cache: what is in it, who works on what, what is done and may be used.

Opened by `fetching`, by `bireme images` and by tests. Many processes use it at once: whoever makes an image locks it
first (`pulling`), whoever runs one holds it (`holding`), and all locks die with their processes.
Invariants: an image that `find` gives is whole; what a machine's crash may have torn is not given, but made again.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import msgspec

from bireme.images.cache.progress import EVERY_S, Tell
from bireme.images.messages import Image, Progress
from bireme.images.refusing import RefusedError, in_words
from bireme.images.unpacking.beneath import remove

_FOLDERS = ("blobs/sha256", "blobs/sha512", "roots", "names", "pulls")
_MOST_RECORD = 8 << 20
_MOST_MEANINGS, _MEANING_KEPT_S = 32, 30 * 86_400
NEW, GONE = ".new", ".gone"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """`image.json`: what is known of an unpacked image. The paths of `image` are not kept: a cache may move."""

    image: Image
    names: tuple[str, ...]
    """What it was asked for as."""
    size: int
    """Bytes on the disk."""
    boot: str
    """Of the machine, when it was made: what was not written out since is lost with the next one."""
    made_at: float


class Meant(msgspec.Struct, frozen=True, array_like=True):
    """What a name meant until it came to mean something else. `at`: when that was seen last."""

    digest: str
    at: float


class Meaning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a name meant when it was asked for last, and what before, from the oldest on."""

    name: str
    digest: str
    at: float
    before: tuple[Meant, ...] = ()

    def since(self, moment: float) -> Meant | None:
        """What it was first seen to mean from this moment on: the same for everybody who asks with that moment."""
        seen = (*self.before, Meant(self.digest, self.at))
        return next((each for each in seen if each.at >= moment), None)


class Cache:
    def __init__(self, folder: str) -> None:
        """Raises RefusedError where the folder cannot be had, or is somebody else's."""
        self.folder = folder
        try:
            for name in ("", *_FOLDERS):
                os.makedirs(os.path.join(folder, name), mode=0o700, exist_ok=True)
            about = os.stat(folder)
        except OSError as error:
            raise in_words(error, f"images cannot be kept in {folder}") from error
        if about.st_uid != os.geteuid():
            raise RefusedError(f"{folder} belongs to somebody else: name another folder in the setting images.cache")

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    def blob(self, digest: str) -> str:
        algorithm, _, value = digest.partition(":")
        return self.path("blobs", algorithm, value)

    # --- images --------------------------------------------------------------------------------------------

    def find(self, digest: str, name: str = "") -> Image | None:
        """The image of this digest, if it is there and whole. `name`: what it is asked for as; it is written down."""
        key = key_of(digest)
        place = self.path("roots", key)
        record = self.record(key)
        if record is None:
            return None
        if record.boot != boot_id() and not os.path.exists(f"{place}/settled"):
            self.remove(key)
            return None
        if name and name not in record.names:
            record = msgspec.structs.replace(record, names=(*record.names, name))
            try:
                self._write(f"{place}/image.json", record)
            except FileNotFoundError:  # it was evicted meanwhile
                return None
        return self._image(key, record, name)

    def record(self, key: str) -> Record | None:
        return _read(self.path("roots", key, "image.json"), Record)

    def whole(self) -> list[str]:
        """The keys of all images that are."""
        return sorted(name for name in os.listdir(self.path("roots")) if not name.endswith((NEW, GONE)))

    def begin(self, digest: str) -> str:
        """An empty root for an image that this process is `pulling`."""
        place = self.path("roots", key_of(digest) + NEW)
        remove(place)
        os.makedirs(f"{place}/root", mode=0o755)
        os.chmod(place, 0o700)
        return f"{place}/root"

    def abandon(self, digest: str) -> None:
        with suppress(OSError):
            remove(self.path("roots", key_of(digest) + NEW))

    def commit(self, digest: str, image: Image, size: int) -> Image:
        """From now on it is there."""
        key = key_of(digest)
        place = self.path("roots", key + NEW)
        record = Record(image=image, names=(image.name,), size=size, boot=boot_id(), made_at=time.time())
        self._write(f"{place}/image.json", record)
        os.close(os.open(f"{place}/lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with suppress(FileNotFoundError):
            self.remove(key)
        os.rename(place, self.path("roots", key))
        return self._image(key, record, image.name)

    def settle(self, digest: str) -> None:
        """Writes all of it to the disk, so that it outlives the machine's crash. May take a while."""
        place = self.path("roots", key_of(digest))
        with suppress(OSError):
            fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if ctypes.CDLL(None, use_errno=True).syncfs(fd) == 0:
                    os.close(os.open(f"{place}/settled", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            finally:
                os.close(fd)

    def remove(self, key: str) -> bool:
        """Takes an image away; False when something runs in it."""
        place, gone = self.path("roots", key), self.path("roots", f"{key}.{os.getpid()}{GONE}")
        fd = -1
        try:
            with suppress(FileNotFoundError):
                fd = os.open(f"{place}/lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                os.rename(place, gone)
        except BlockingIOError:
            return False
        finally:
            if fd >= 0:
                os.close(fd)
        remove(gone)
        return True

    def _image(self, key: str, record: Record, name: str) -> Image:
        place = self.path("roots", key)
        named = name or next(iter(record.names), record.image.name)
        return msgspec.structs.replace(record.image, root=f"{place}/root", lock=f"{place}/lock", name=named)

    # --- names ---------------------------------------------------------------------------------------------

    def meaning(self, name: str) -> Meaning | None:
        found = _read(self._name_file(name), Meaning)
        return found if found is not None and found.name == name else None

    def remember(self, name: str, digest: str) -> None:
        """What it meant before has it no more."""
        before = self.meaning(name)
        moved = before is not None and before.digest != digest
        earlier = () if before is None else before.before
        if before is not None and moved:
            earlier = (*earlier, Meant(before.digest, before.at))[-_MOST_MEANINGS:]
        self._write(self._name_file(name), Meaning(name=name, digest=digest, at=time.time(), before=earlier))
        if before is None or not moved:
            return
        key = key_of(before.digest)
        if (record := self.record(key)) is not None:
            others = tuple(each for each in record.names if each != name)
            with suppress(FileNotFoundError):  # it was evicted meanwhile
                self._write(self.path("roots", key, "image.json"), msgspec.structs.replace(record, names=others))

    def forget_meanings(self) -> None:
        """What names meant that mean nothing here any more, and that no job may have begun with."""
        past = time.time() - _MEANING_KEPT_S
        with os.scandir(self.path("names")) as entries:
            for entry in entries:
                meaning = _read(entry.path, Meaning)
                if meaning is None or (
                    meaning.at < past and not os.path.exists(self.path("roots", key_of(meaning.digest)))
                ):
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)

    def _name_file(self, name: str) -> str:
        return self.path("names", f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()}.json")

    # --- who works on what ---------------------------------------------------------------------------------

    @contextmanager
    def pulling(self, what: str, tell: Tell) -> Iterator[Tell]:
        """One process at a time; the others wait, and show what that one tells to the function that it is given."""
        path = self.path("pulls", key_of(what))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while not _locked(fd):
                shown = _progress_in(fd)
                tell(Progress("waiting", shown.done, shown.of))
                time.sleep(EVERY_S)

            def told(progress: Progress) -> None:
                data = msgspec.json.encode(progress)
                os.pwrite(fd, data + b" " * max(0, os.fstat(fd).st_size - len(data)), 0)
                tell(progress)

            yield told
        finally:
            with suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)

    def is_pulled(self, what: str) -> bool:
        """Whether a process is at it."""
        try:
            fd = os.open(self.path("pulls", key_of(what)), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _locked(fd)
        finally:
            os.close(fd)

    @contextmanager
    def only(self) -> Iterator[None]:
        """Nobody else evicts meanwhile."""
        fd = os.open(self.path("eviction"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _write(self, path: str, value: msgspec.Struct) -> None:
        new = f"{path}.{os.getpid()}"
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(value))
        os.rename(new, path)


def key_of(digest: str) -> str:
    """As a file is called."""
    return digest.replace(":", "-")


def free_bytes(folder: str) -> int:
    return shutil.disk_usage(folder).free


def boot_id() -> str:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _progress_in(fd: int) -> Progress:
    try:
        return msgspec.json.decode(os.pread(fd, 4096, 0), type=Progress)
    except (ValueError, OSError):
        return Progress("waiting")


T = TypeVar("T")


def _read(path: str, kind: type[T]) -> T | None:
    """None where it is not there, or is torn."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            return msgspec.json.decode(file.read(_MOST_RECORD), type=kind)
    except (OSError, ValueError):
        return None
