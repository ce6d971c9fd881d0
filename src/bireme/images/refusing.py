"""Why an image cannot be had, as an error that carries the sentence its user reads.

Raised anywhere in this room; `__main__` and `bireme images` tell it. Invariant: the sentence says what to do.
"""

from __future__ import annotations

import errno


class RefusedError(Exception):
    """The image cannot be had; the text says why, and what to do."""


def in_words(error: OSError, doing: str) -> RefusedError:
    """What the file system said while something was done, with what helps."""
    remedies = {
        errno.ENOSPC: "make room with `bireme images prune`, or name another folder in the setting images.cache",
        errno.EDQUOT: "your quota is used up: `bireme images prune`, or another folder in the setting images.cache",
        errno.EROFS: "name a folder that can be written in the setting images.cache",
        errno.EACCES: "the folder in the setting images.cache must be yours",
    }
    why = error.strerror or type(error).__name__
    remedy = remedies.get(error.errno or 0)
    return RefusedError(f"{doing}: {why}" + (f"; {remedy}" if remedy else ""))
