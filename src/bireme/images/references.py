"""What images are called: the spelling of Pyxis and Enroot, Docker's defaults, and paths. Pure.

    [docker://][USER@][REGISTRY#]IMAGE[:TAG][@DIGEST]        /a/path  ./a/path  ../a/path

A name without `#` has Docker's defaults: the registry is docker.io unless the first part of the name is a host (it has
a dot, a port, or is `localhost`), and the tag is `latest`.
Invariant: what is parsed can be put into a URL and a file name as it is.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass

from bireme.images.refusing import RefusedError

DOCKER_HUB = "docker.io"
_HUB_NAMES = frozenset((DOCKER_HUB, "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"))
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_LONGEST = 4096
_ELSEWHERE = {
    "dockerd": "save it with `docker save -o image.tar IMAGE` and name ./image.tar",
    "podman": "save it with `podman save -o image.tar IMAGE` and name ./image.tar",
    "library": "pull it with `apptainer pull image.sif` and name ./image.sif",
    "shub": "pull it with `apptainer pull image.sif` and name ./image.sif",
    "oras": "pull it with `apptainer pull image.sif` and name ./image.sif",
    "http": "an image's name has no http://, and plain HTTP is a setting (images.insecure)",
    "https": "leave https:// out",
}
_FILES = (".sqsh", ".squashfs", ".sif", ".tar", ".tar.gz", ".tgz", ".img")


@dataclass(frozen=True, slots=True)
class Reference:
    """An image in a registry."""

    registry: str
    image: str
    tag: str = "latest"
    digest: str = ""
    """Of a manifest; it wins over the tag."""
    user: str = ""
    """Whose credentials are meant, where several are kept for the registry."""

    @property
    def name(self) -> str:
        """The whole name, as Docker writes it; without the user."""
        return f"{self.registry}/{self.image}" + (f"@{self.digest}" if self.digest else f":{self.tag}")

    @property
    def pinned(self) -> bool:
        """Whether it can mean one thing only."""
        return bool(self.digest)


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A file or folder of the user's."""

    path: str

    def absolute(self, folder: str) -> str:
        return os.path.normpath(os.path.join(folder, self.path))


def parse_reference(text: str) -> Reference | LocalPath:
    """Raises RefusedError."""
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise RefusedError(f"{_shown(text)} is no image: write IMAGE:TAG, REGISTRY#IMAGE:TAG or a path")
    if text.startswith(("/", "./", "../")):
        return LocalPath(text)
    if (scheme := _SCHEME.match(text)) is not None:
        if scheme[1] != "docker":
            remedy = _ELSEWHERE.get(scheme[1], "write docker://IMAGE:TAG or a path")
            raise RefusedError(f"{_shown(text)}: images of {scheme[1]}:// are not reached from here; {remedy}")
        text = text[scheme.end() :]
    return _in_a_registry(text)


def _in_a_registry(text: str) -> Reference:
    whole, digest, user = text, "", ""
    if (found := _DIGEST.search(text)) is not None:
        text, digest = text[: found.start()], found[1]
    if "@" in text:
        if text.rpartition("@")[2].startswith(("sha256:", "sha512:")):
            raise RefusedError(f"{_shown(whole)}: a digest is sha256: and 64 digits of 0-9a-f, or sha512: and 128")
        user, _, text = text.partition("@")
    registry, given, image = text.rpartition("#")
    if not given:
        first, _, rest = image.partition("/")
        if rest and ("." in first or ":" in first or first == "localhost"):
            registry, image = first, rest
    image, _, tag = _without_tag(image)
    registry = registry or DOCKER_HUB
    if registry in _HUB_NAMES:
        registry = DOCKER_HUB
        image = image if "/" in image else f"library/{image}"
    return _checked(Reference(registry, image, tag or "latest", digest, user), whole)


def _without_tag(image: str) -> tuple[str, str, str]:
    head, slash, last = image.rpartition("/")
    name, colon, tag = last.partition(":")
    return head + slash + name, colon, tag


def _checked(reference: Reference, text: str) -> Reference:
    shown = _shown(text)
    if not _HOST.fullmatch(reference.registry):
        raise RefusedError(
            f"{shown}: {_shown(reference.registry)} is no registry: write HOST or HOST:PORT before the #"
        )
    for part in reference.image.split("/"):
        if not _PART.fullmatch(part):
            if _PART.fullmatch(part.lower()):
                raise RefusedError(f"{shown}: names of images are lower case: {reference.image.lower()}")
            raise RefusedError(
                f"{shown} is no image: write IMAGE:TAG, REGISTRY#IMAGE:TAG, or a path that begins with / or ./"
            )
    if not _TAG.fullmatch(reference.tag):
        raise RefusedError(f"{shown}: {_shown(reference.tag)} is no tag: letters, digits, '_', '.', '-', at most 128")
    return reference


def hint_for(reference: Reference) -> str:
    """What a user may have meant whose image is not there."""
    if reference.registry == DOCKER_HUB and reference.image.endswith(_FILES):
        return f"; for a file write ./{reference.image.removeprefix('library/')}"
    return ""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else f"{text[:200]}...")
