"""The place that an image is to be saved at: whether it can be written there, said before the work and after it.

Asked by who builds a box (hours before, `agent/boxes/building`) and by who writes the file (`saving`), both with the
user's rights. Invariant: nothing is written, and what is there is not touched.
"""

from __future__ import annotations

import os
import shutil

PROGRAM = "mksquashfs"


def why_not_at(target: str) -> str:
    """One sentence; empty: as far as can be seen it will work."""
    if shutil.which(PROGRAM) is None:
        return f"{target} cannot be written: install squashfs-tools on the nodes ({PROGRAM} is not there)"
    folder = os.path.dirname(target)
    if not target.startswith("/") or not os.path.isdir(folder) or os.path.isdir(target):
        return f"{target} cannot be written: name a file in a folder that is there, from / on"
    if not os.access(folder, os.W_OK, effective_ids=True):
        return f"{target} cannot be written: its folder is not yours to write to, name a file in one that is"
    if os.path.exists(target) and not os.path.isfile(target):
        return f"{target} cannot be written: it is no file, name one that is to be made"
    return ""
