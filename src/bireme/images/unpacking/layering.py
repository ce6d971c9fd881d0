"""Lays the entries of layers over each other in a root: files, links, what a newer layer takes away.

All belongs to whoever unpacks it, as under Enroot: a user without root can have no other owners, and one image means
the same to all. Devices are left out, setuid and setgid are dropped, of extended attributes those of users are kept.
Every file can be read and every folder changed by its owner, or the image could not be evicted.
Invariant: what is written is new. A file that is there, which may be linked to elsewhere, is never written to.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from bireme.images.refusing import RefusedError
from bireme.images.unpacking import tar_stream as tar
from bireme.images.unpacking.beneath import Beneath, remove
from bireme.images.unpacking.bounds import Allowance
from bireme.images.unpacking.tar_stream import Entry, TarStream

WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"
_OF_AUFS = ".wh..wh."
_USERS_XATTRS = "user."
_FILE_MODE, _FOLDER_MODE = 0o777, 0o1777
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Layering:
    """One root that layers are laid into, the lowest first. The process has a umask of 0 meanwhile (`assembling`)."""

    def __init__(self, root: str, allowance: Allowance) -> None:
        self._beneath = Beneath(root)
        self._allowance = allowance
        self._made: set[str] = set()
        """By this layer: what it takes away is what the layers below it made."""
        self._times: dict[str, float] = {}
        """Of folders: set when nothing is put into them any more."""

    def lay(self, layer: TarStream) -> None:
        """Raises RefusedError, OSError."""
        self._made, self._times = set(), {}
        for entry in layer:
            self._allowance.take_entry(entry.size)
            self._put(layer, entry)
        for place, mtime in self._times.items():
            with suppress(OSError):
                os.utime(self._beneath.path(place), (mtime, mtime), follow_symlinks=False)

    def _put(self, layer: TarStream, entry: Entry) -> None:
        name = os.path.basename(entry.name.rstrip("/"))
        if name.startswith(WHITEOUT):
            self._take_away(entry, name)
            return
        if entry.kind == tar.DEVICE:
            return
        place = self._beneath.place(entry.name, make=True)
        path = self._beneath.path(place)
        if entry.kind == tar.FOLDER:
            self._put_folder(place, path, entry)
        elif not place:
            raise RefusedError("the image has a root that is no folder: it is not unpacked")
        elif entry.kind == tar.FILE:
            self._put_file(layer, path, entry)
        elif entry.kind == tar.HARD_LINK:
            self._put_hard_link(path, entry)
        else:
            self._clear(path)
            if entry.kind == tar.SYMLINK:
                os.symlink(entry.target, path)
            else:
                os.mkfifo(path, entry.mode & _FILE_MODE | 0o600)
            with suppress(OSError):
                os.utime(path, (entry.mtime, entry.mtime), follow_symlinks=False)
        self._note(place)

    def _put_folder(self, place: str, path: str, entry: Entry) -> None:
        mode = entry.mode & _FOLDER_MODE | 0o700
        try:
            os.mkdir(path, mode)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                self._clear(path)
                os.mkdir(path, mode)
            os.chmod(path, mode)
        self._times[place] = entry.mtime

    def _put_file(self, layer: TarStream, path: str, entry: Entry) -> None:
        mode = entry.mode & _FILE_MODE | 0o400
        try:
            fd = os.open(path, _NEW, mode)
        except FileExistsError:
            self._clear(path)
            fd = os.open(path, _NEW, mode)
        try:
            for piece in layer.content(entry):
                written = os.write(fd, piece)
                while written < len(piece):
                    written += os.write(fd, piece[written:])
            for name, value in entry.xattrs.items():
                if name.startswith(_USERS_XATTRS):
                    with suppress(OSError, ValueError):  # not every file system has them, nor any name
                        os.setxattr(fd, name, value)
            os.utime(fd, (entry.mtime, entry.mtime))
        finally:
            os.close(fd)

    def _put_hard_link(self, path: str, entry: Entry) -> None:
        target = self._beneath.path(self._beneath.place(entry.target, make=False))
        if target == path:
            return
        try:
            if stat.S_ISDIR(os.lstat(target).st_mode):
                raise RefusedError(f"the image links to a folder ({entry.target!r}): it is not unpacked")
        except FileNotFoundError:
            raise RefusedError(
                f"the image links {entry.name!r} to {entry.target!r}, which is not there: it is damaged, push it anew"
            ) from None
        self._clear(path)
        os.link(target, path, follow_symlinks=False)

    def _take_away(self, entry: Entry, name: str) -> None:
        if name.startswith(_OF_AUFS) and name != OPAQUE:
            return
        above = self._beneath.folder(os.path.dirname(entry.name.rstrip("/")), make=True)
        if name == OPAQUE:
            self._remove_older(above)
            return
        gone = name.removeprefix(WHITEOUT)
        if gone in ("", ".", ".."):
            raise RefusedError(f"the image takes away what it cannot have ({entry.name!r}): it is not unpacked")
        place = f"{above}/{gone}" if above else gone
        if place in self._made:
            self._remove_older(place)
        else:
            self._clear(self._beneath.path(place))

    def _remove_older(self, place: str) -> None:
        """What layers below put into a folder."""
        path = self._beneath.path(place)
        if os.path.islink(path) or not os.path.isdir(path):
            return
        for name in os.listdir(path):
            below = f"{place}/{name}" if place else name
            if below in self._made:
                self._remove_older(below)
            else:
                self._clear(self._beneath.path(below))

    def _note(self, place: str) -> None:
        """With the folders above it: they hold something of this layer."""
        while place and place not in self._made:
            self._made.add(place)
            place = place.rpartition("/")[0]

    def _clear(self, path: str) -> None:
        remove(path)
        self._beneath.forget()
