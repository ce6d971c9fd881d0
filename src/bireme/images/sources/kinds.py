"""What a path holds, told by its content and not by its name.

Called by `fetching`. Invariant: nothing is opened that could wait (a pipe, a device).
"""

from __future__ import annotations

import hashlib
import os
import stat
from enum import Enum

from bireme.images.refusing import RefusedError
from bireme.images.sources.bundle import is_bundle

_SIF_AT, _TAR_AT = 32, 257


class Kind(Enum):
    FOLDER = "a folder that is a root"
    BUNDLE = "an OCI bundle"
    LAYOUT = "an OCI layout"
    ARCHIVE = "a tar of docker save, or of an OCI layout"
    SQUASHFS = "a squashfs file"
    SIF = "an Apptainer image"


def kind_of(path: str) -> Kind:
    """Raises RefusedError."""
    try:
        about = os.stat(path)
        if stat.S_ISDIR(about.st_mode):
            return _kind_of_folder(path)
        if not stat.S_ISREG(about.st_mode):
            raise RefusedError(f"{path} is no image: it is neither a file nor a folder")
        with open(path, "rb") as file:
            head = file.read(512)
    except FileNotFoundError:
        raise RefusedError(
            f"{path} is not there: an image that is a path is looked for on the node of the job"
        ) from None
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror}") from error
    if head[:4] == b"hsqs":
        return Kind.SQUASHFS
    if head[_SIF_AT : _SIF_AT + 9] == b"SIF_MAGIC":
        return Kind.SIF
    if head[_TAR_AT : _TAR_AT + 5] == b"ustar" or head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd":
        return Kind.ARCHIVE
    raise RefusedError(
        f"{path} is no image: neither squashfs (.sqsh), Apptainer's (.sif), a tar of docker save, nor a folder"
    )


def _kind_of_folder(path: str) -> Kind:
    inside = set(os.listdir(path))
    if {"oci-layout", "index.json"} <= inside:
        return Kind.LAYOUT
    if not inside & {"bin", "usr", "sbin", "lib", "etc"}:
        if is_bundle(inside):
            return Kind.BUNDLE
        raise RefusedError(f"{path} is no image: a folder must be a root (bin, usr, etc ...) or an OCI layout")
    return Kind.FOLDER


def identity_of(path: str) -> str:
    """What stands for the content of a local file: as long as none of this changes, it was not written to."""
    about = os.stat(path)
    said = f"{path}\0{about.st_dev}\0{about.st_ino}\0{about.st_size}\0{about.st_mtime_ns}\0{about.st_ctime_ns}"
    return f"file:{hashlib.sha256(said.encode(errors='surrogateescape')).hexdigest()}"
