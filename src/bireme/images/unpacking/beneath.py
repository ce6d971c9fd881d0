"""Places inside a root: where a name of an archive really lies, whatever links the root holds.

A link is followed as a process would that has this root: an absolute one begins at the root, and none leads out of it.
Nobody else writes to the root meanwhile: it is in a folder that is the user's own, under a name that is not final.
Invariant: what is returned has no link above its last part, and lies below the root.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from bireme.images.refusing import RefusedError

_MOST_LINKS = 40
_MOST_PARTS = 1000


class Beneath:
    def __init__(self, root: str) -> None:
        self.root = root
        self._real: dict[str, str] = {"": ""}
        """By folder as an archive names it: where that is, from the root on. Forgotten when a link may have changed."""

    def path(self, place: str) -> str:
        """Of a place from the root on, as the kernel reads it."""
        return f"{self.root}/{place}" if place else self.root

    def place(self, name: str, *, make: bool) -> str:
        """Where an entry of this name is to lie, from the root on. `make`: the folders above it are made."""
        parts = _parts(name)
        if not parts:
            return ""
        above = self._folder("/".join(parts[:-1]), make=make)
        return f"{above}/{parts[-1]}" if above else parts[-1]

    def folder(self, name: str, *, make: bool) -> str:
        """Where a folder of this name really lies, from the root on; a link to one is followed."""
        return self._folder("/".join(_parts(name)), make=make)

    def forget(self) -> None:
        """A folder or link was replaced: what was known of links may be wrong."""
        self._real = {"": ""}

    def _folder(self, name: str, *, make: bool) -> str:
        real = self._real.get(name)
        if real is None:
            real = self._real[name] = self._resolved(name.split("/"), make)
        return real

    def _resolved(self, parts: list[str], make: bool) -> str:
        real: list[str] = []
        todo, links = parts[::-1], 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                real[-1:] = []
                continue
            path = self.path("/".join([*real, part]))
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                mode = 0
            if stat.S_ISLNK(mode):
                links += 1
                if links > _MOST_LINKS:
                    raise RefusedError(
                        f"the image's links go round in a circle at {'/'.join(parts)!r}: it cannot be unpacked"
                    )
                target = os.readlink(path)
                if target.startswith("/"):
                    real = []
                todo += target.split("/")[::-1]
                continue
            if not stat.S_ISDIR(mode):
                self._make_folder(path, mode, make)
            real.append(part)
        return "/".join(real)

    def _make_folder(self, path: str, mode: int, make: bool) -> None:
        if not make:
            raise RefusedError(f"the image has a link to {path.removeprefix(self.root)!r}, which is not there")
        if mode:  # a file where a folder is to be: the newer layer is right
            os.unlink(path)
        os.mkdir(path, 0o755)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise RefusedError(f"the image has an entry that leads out of it ({name[:200]!r}): it is not unpacked")
    if len(parts) > _MOST_PARTS or "\0" in name:
        raise RefusedError(f"the image has a name that no file can have ({name[:200]!r}): it is not unpacked")
    return parts


def remove(path: str) -> None:
    """Whatever is there, without following a link; nothing when nothing is there. Deep trees are taken from within."""
    try:
        os.unlink(path)
        return
    except FileNotFoundError:
        return
    except OSError:  # a folder
        pass
    stack = [path]
    while stack:
        folder = stack[-1]
        below = []
        with suppress(PermissionError):
            os.chmod(folder, 0o700)  # not every image lets its owner change its folders
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
                else:
                    os.unlink(entry.path)
        if not below:
            os.rmdir(stack.pop())
        stack += below
