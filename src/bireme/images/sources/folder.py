"""A plain folder as an image: a root that its user keeps, and may write to.

Called by `fetching`. It is not copied and not evicted, and what says how to run it is what it holds itself
(`stated`). Invariant: only the user's own rights decide what of it can be read.
"""

from __future__ import annotations

import os

from bireme.images.elf import check_architecture
from bireme.images.messages import Image
from bireme.images.refusing import RefusedError
from bireme.images.sources.stated import stated_in


def plain_folder(path: str) -> Image:
    """Raises RefusedError."""
    if not os.access(path, os.R_OK | os.X_OK):
        raise RefusedError(f"{path} cannot be entered: an image must be readable by whoever runs it")
    image = stated_in(path, name=path, read_only=False)
    check_architecture(path, image.architecture)
    return image
