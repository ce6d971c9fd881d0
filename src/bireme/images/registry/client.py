"""Asks a registry for the manifests and blobs of one image; its mirrors first, where there are any.

Used by `sources.registry`. A mirror that fails is passed over; the registry itself has the last word.
Invariant: what has a digest is held against it before anybody believes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from bireme.images.manifests import INDEX_TYPES, MANIFEST_TYPES, MOST_BYTES, Blob, digest_of
from bireme.images.messages import Policy
from bireme.images.references import DOCKER_HUB, Reference, hint_for
from bireme.images.refusing import RefusedError
from bireme.images.registry.authority import Authority
from bireme.images.registry.wire import Answer, UnreachableError, request

_ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_BUSY = (408, 429, 500, 502, 503, 504)
_HUB_HOST = "registry-1.docker.io"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place:
    """One server that has the image."""

    base: str
    host: str
    authority: Authority


class RegistryClient:
    def __init__(self, reference: Reference, policy: Policy) -> None:
        self._reference, self._idle_s = reference, float(policy.idle_s)
        mirrors = [
            mirror for of, _, mirror in (each.partition("=") for each in policy.mirrors) if of == reference.registry
        ]
        self._places = [self._place(host, policy) for host in (*mirrors, reference.registry)]
        self._lock = threading.Lock()
        self._failed: set[str] = set()
        """Mirrors that are not asked again."""

    def _place(self, given: str, policy: Policy) -> _Place:
        host = given.rstrip("/")
        scheme = "http" if host in policy.insecure else "https"
        at = _HUB_HOST if host == DOCKER_HUB else host
        scope = f"repository:{self._reference.image}:pull"
        authority = Authority(host, self._reference.name, scope, self._reference.user, self._idle_s)
        return _Place(f"{scheme}://{at}/v2/{self._reference.image}", host, authority)

    def manifest(self, digest: str = "") -> bytes:
        """The manifest or index of this digest, or what the reference means. Raises RefusedError."""
        wanted = digest or self._reference.digest or self._reference.tag

        def read(place: _Place) -> bytes:
            with self._asked(place, f"manifests/{wanted}", {"Accept": _ACCEPT}) as answer:
                data = answer.body(MOST_BYTES)
            said = wanted if ":" in wanted else answer.headers.get("docker-content-digest", "")
            if said.startswith(("sha256:", "sha512:")) and digest_of(data, said) != said:
                raise UnreachableError(lies(place.host, self._reference.name))
            return data

        return self._by_first(read)

    def small_blob(self, blob: Blob) -> bytes:
        """A configuration. Raises RefusedError."""

        def read(place: _Place) -> bytes:
            with self._asked(place, f"blobs/{blob.digest}", {}) as answer:
                data = answer.body(MOST_BYTES)
            if digest_of(data, blob.digest) != blob.digest:
                raise UnreachableError(lies(place.host, self._reference.name))
            return data

        return self._by_first(read)

    def pieces(self, blob: Blob, start: int) -> tuple[int, Iterator[bytes], str]:
        """The bytes of a blob from `start` on, if the registry can do that: where they begin, themselves, and whose
        they are. Their digest is for the caller to check. Raises RefusedError."""

        def open_(place: _Place) -> tuple[int, Iterator[bytes], str]:
            headers = {"Range": f"bytes={start}-"} if start else {}
            answer = self._asked(place, f"blobs/{blob.digest}", headers)
            begins = start if answer.status == 206 and _begins_at(answer, start) else 0
            if answer.status == 206 and begins != start:
                answer.close()
                raise UnreachableError(f"{place.host} sends another part of {self._reference.name} than was asked for")
            return begins, _closing(answer), place.host

        return self._by_first(open_)

    def distrust(self, host: str) -> None:
        """What it sent was not what its digest says: if it is a mirror, it is not asked again."""
        with self._lock:
            self._failed.add(host)

    def _by_first(self, ask: Callable[[_Place], T]) -> T:
        """Of the mirrors and the registry: the first that can."""
        *mirrors, last = self._places
        for place in mirrors:
            if place.host not in self._failed:
                try:
                    return ask(place)
                except RefusedError:
                    self.distrust(place.host)
        return ask(last)

    def _asked(self, place: _Place, what: str, headers: dict[str, str]) -> Answer:
        url, name = f"{place.base}/{what}", self._reference.name
        for _ in range(3):
            shown = place.authority.authorization
            answer = request(url, headers, authorization=shown, idle_s=self._idle_s)
            if answer.status != 401:
                break
            answer.close()
            place.authority.challenged(answer.headers, url, shown)
        if answer.status in (200, 206):
            return answer
        answer.close()
        if answer.status in (401, 403):
            raise place.authority.refused()
        if answer.status == 404:
            kind = "a part of it" if what.startswith("blobs/") else "the image"
            raise RefusedError(
                f"{name}: {kind} is not there{hint_for(self._reference)}; is name and tag spelled right?"
            )
        if answer.status in _BUSY:
            raise UnreachableError(
                f"{place.host} is too busy for {name} ({answer.status}): try again later, or use a mirror"
            )
        raise RefusedError(f"{place.host} does not hand out {name} (HTTP {answer.status}): is it a registry?")


def lies(host: str, name: str) -> str:
    return f"{host} sends something else for {name} than its digest says: pull it again, or tell its keeper"


def _begins_at(answer: Answer, start: int) -> bool:
    return answer.headers.get("content-range", "").startswith(f"bytes {start}-")


def _closing(answer: Answer) -> Iterator[bytes]:
    with answer:
        yield from answer.pieces()
