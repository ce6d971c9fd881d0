"""The settings `images.*`, from the texts in which the daemon shows them to a `Policy`. Pure.

Called by the daemon for its agents, and by `bireme images`, which asks the daemon for them.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping

from bireme.images.messages import Policy

_GIB = 1 << 30
_MOST_GIB, _MOST_S, _MOST_DOWNLOADS = 1 << 20, 86_400, 64


def policy_from(settings: Mapping[str, str], home: str) -> Policy:
    """Raises ValueError, with the setting that is wrong."""
    cache = settings.get("images.cache", "")
    mirrors = _words(settings, "images.mirrors")
    for mirror in mirrors:
        registry, equals, place = mirror.partition("=")
        if not registry or not equals or not place or "//" in place:
            raise ValueError(f"images.mirrors: {mirror!r} is not REGISTRY=HOST:PORT, such as docker.io=mirror:5000")
    blank = Policy()
    return Policy(
        cache=os.path.abspath(os.path.expanduser(cache)) if cache else os.path.join(home, "images"),
        most_bytes=_number(settings, "images.most_gib", blank.most_bytes // _GIB, _MOST_GIB) * _GIB,
        largest_bytes=_number(settings, "images.largest_gib", blank.largest_bytes // _GIB, _MOST_GIB) * _GIB,
        fresh_s=_number(settings, "images.fresh_s", blank.fresh_s, _MOST_S, least=0),
        idle_s=_number(settings, "images.idle_s", blank.idle_s, _MOST_S),
        parallel=_number(settings, "images.downloads", blank.parallel, _MOST_DOWNLOADS),
        mirrors=mirrors,
        insecure=_words(settings, "images.insecure"),
    )


def _words(settings: Mapping[str, str], key: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in settings.get(key, "").split(",") if word.strip())


def _number(settings: Mapping[str, str], key: str, default: int, most: int, *, least: int = 1) -> int:
    value = int(settings.get(key) or default)
    if not least <= value <= most:
        raise ValueError(f"{key}: {value} is not possible: it must be from {least} to {most}")
    return value
