"""The small files of a home that outlive a daemon: written with a sum, and told when they are not what was written.

Which slurm.conf and engine the latest start was made with, and with which settings: a file that changed by itself must
not start another cluster in silence. Read by `settings` at a start; looked at by `inspection`.
Invariant: a file is replaced as a whole; a reader sees what was written, or `DamagedFileError`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib

from bireme.daemon.paths import Paths


class DamagedFileError(Exception):
    """A file is not what was written. The text names it."""


def write_sealed(path: str, text: str) -> None:
    fresh = path + ".new"
    # For the owner alone, in a folder that others pass through: settings may hold what is nobody else's business.
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump({"text": text, "sum": zlib.crc32(text.encode(errors="surrogateescape"))}, file)
    os.replace(fresh, path)


def read_sealed(path: str) -> str | None:
    """What was written; None if there is no such file. One of an earlier Bireme is the text itself."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedFileError(f"cannot read {path}: {error.strerror}") from error
    try:
        sealed = json.loads(content)
        text = sealed["text"]
        if zlib.crc32(text.encode(errors="surrogateescape")) == sealed["sum"] and len(sealed) == 2:
            return str(text)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise DamagedFileError(f"{path} is not what was written")


def file_text(path: str) -> str:
    """The text of a file; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def read_file(path: str, most_bytes: int) -> bytes:
    """Up to one byte more than `most_bytes` of a file that somebody wrote; raises OSError, also of what is no file: to
    open a pipe would wait for ever."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is no file")
        return file.read(most_bytes + 1)


def changed_settings(paths: Paths) -> bool:
    """Whether bireme.toml is another than at the latest start: somebody edited it, or it rotted."""
    try:
        return (read_sealed(paths.settings_in_force) or "") != file_text(paths.settings)
    except DamagedFileError:
        return True
