"""From what a user wrote to a folder that can be run: finds out what it names, and has it fetched where it is not here.

Called by `__main__` for tasks, and by `bireme images pull`. Who asks for the same at the same time waits for one of
them (`Cache.pulling`), and finds it made.
Invariant: what is returned is whole, and is there.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from bireme.images.assembling import Layered, assemble, committed, new_root
from bireme.images.cache.eviction import make_room
from bireme.images.cache.progress import Meter, Tell
from bireme.images.cache.store import Cache, Meaning
from bireme.images.elf import check_architecture
from bireme.images.manifests import Manifest
from bireme.images.messages import FOR_EVER, Image, Policy, Wanted, folder_of
from bireme.images.references import Reference, parse_reference
from bireme.images.refusing import in_words
from bireme.images.registry.client import RegistryClient
from bireme.images.registry.wire import UnreachableError
from bireme.images.sources.archive import opened_archive
from bireme.images.sources.bundle import bundled_folder
from bireme.images.sources.folder import plain_folder
from bireme.images.sources.kinds import Kind, identity_of, kind_of
from bireme.images.sources.layout import folder_layout
from bireme.images.sources.registry import brought, resolve
from bireme.images.sources.squashed import sif_offset, unsquash
from bireme.images.sources.stated import stated_in
from bireme.images.unpacking.bounds import Allowance


@dataclass(frozen=True, slots=True)
class Done:
    """`settle`: what is left to do when whoever asked has been told."""

    image: Image
    settle: Callable[[], None] = lambda: None


def fetch(wanted: Wanted, tell: Tell) -> Done:
    """Raises RefusedError, OSError."""
    named = parse_reference(wanted.image)
    policy = wanted.policy
    if isinstance(named, Reference):
        return _Fetching(policy, tell, named.name, wanted.since).from_registry(named)
    path = named.absolute(wanted.folder)
    kind = kind_of(path)
    if kind is Kind.FOLDER:
        return _lasting(Done(plain_folder(path)), time.time())
    if kind is Kind.BUNDLE:
        return Done(bundled_folder(path))
    fetching = _Fetching(policy, tell, path)
    try:
        return fetching.from_layout(path) if kind is Kind.LAYOUT else fetching.from_file(path, kind)
    except PermissionError as error:
        raise in_words(error, f"{path} cannot be read") from error


def _lasting(done: Done, until: float) -> Done:
    return replace(done, image=msgspec.structs.replace(done.image, known_until=until))


class _Fetching:
    """One image on its way into the user's cache. `name`: as people write it."""

    def __init__(self, policy: Policy, tell: Tell, name: str, since: float = 0.0) -> None:
        self._policy, self._tell, self._name, self._since = policy, tell, name, since
        self._cache = Cache(folder_of(policy, os.geteuid()))

    # --- registries ----------------------------------------------------------------------------------------

    def from_registry(self, reference: Reference) -> Done:
        client = RegistryClient(reference, self._policy)
        since = self._since or time.time() - self._policy.fresh_s
        with self._cache.pulling(f"name-{hashlib.sha256(self._name.encode()).hexdigest()}", self._tell):
            known = self._cache.meaning(self._name)
            if known is not None and known.at > time.time():  # the clock was wrong then
                known = None
            meant = known and known.since(0.0 if reference.pinned else since)
            if meant is not None and (image := self._cache.find(meant.digest, self._name)) is not None:
                return _lasting(Done(image), FOR_EVER if reference.pinned else meant.at)
            try:
                manifest = resolve(client, self._name, meant.digest if meant is not None else "")
            except UnreachableError as error:
                return self._as_before(known, error)
            if meant is None:
                self._cache.remember(self._name, manifest.digest)
        at = time.time() if meant is None else meant.at
        made = self._made(manifest.digest, lambda meter: self._from_registry(client, manifest, meter))
        return _lasting(made, FOR_EVER if reference.pinned else at)

    def _from_registry(self, client: RegistryClient, manifest: Manifest, meter: Meter) -> Image:
        with brought(client, manifest, self._cache, self._policy, meter, self._name) as layered:
            return assemble(self._cache, layered, self._policy, meter)

    def _as_before(self, known: Meaning | None, error: UnreachableError) -> Done:
        """A registry that is away does not keep jobs from what is here."""
        image = self._cache.find(known.digest, self._name) if known is not None else None
        if known is None or image is None:
            raise error
        asked = time.strftime("%Y-%m-%d %H:%M", time.localtime(known.at))
        notice = f"{self._name} is run as it was on {asked}, since {error}"
        return Done(msgspec.structs.replace(image, notice=notice, known_until=self._since))

    # --- files ---------------------------------------------------------------------------------------------

    def from_layout(self, path: str) -> Done:
        layered = folder_layout(path)
        return self._made(layered.digest, lambda meter: self._from_layers(layered, meter))

    def from_file(self, path: str, kind: Kind) -> Done:
        identity = identity_of(path)
        known = self._cache.meaning(identity)
        if known is not None and (image := self._cache.find(known.digest, self._name)) is not None:
            return Done(image)
        if kind is Kind.ARCHIVE:
            with opened_archive(path, self._policy.largest_bytes, self._cache.folder) as layered:
                done = self._made(layered.digest, lambda meter: self._from_layers(layered, meter))
            self._cache.remember(identity, layered.digest)
            return done
        offset = sif_offset(path) if kind is Kind.SIF else 0
        done = self._made(identity, lambda meter: self._from_squashfs(path, offset, identity, meter))
        self._cache.remember(identity, identity)
        return done

    def _from_layers(self, layered: Layered, meter: Meter) -> Image:
        meter.expect(sum(layered.sizes))
        meter.came(sum(layered.sizes))
        return assemble(self._cache, layered, self._policy, meter)

    def _from_squashfs(self, path: str, offset: int, identity: str, meter: Meter) -> Image:
        make_room(self._cache, self._policy, os.stat(path).st_size, what=path)
        allowance = Allowance(min(self._policy.largest_bytes, self._policy.most_bytes))
        with new_root(self._cache, identity) as root:
            unsquash(path, offset, root, allowance, meter)
            image = stated_in(root, name=path, read_only=True)
            check_architecture(path, image.architecture)
        return committed(self._cache, identity, image, allowance.bytes_used, self._policy)

    # --- all -----------------------------------------------------------------------------------------------

    def _made(self, digest: str, make: Callable[[Meter], Image]) -> Done:
        """The image of this digest: found, made by somebody else meanwhile, or made now."""
        if (image := self._cache.find(digest, self._name)) is not None:
            return Done(image)
        with self._cache.pulling(digest, self._tell) as tell:
            image = self._cache.find(digest, self._name)
            if image is not None:
                return Done(image)
            image = make(Meter(tell))
        return Done(image, lambda: self._cache.settle(digest))
