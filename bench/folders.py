"""Temporary folders, all removed when the run is over and not before.

ext4 is slow at creating files for minutes after many were deleted (it looks at every inode that was freed of late), so
a row that tidied up after itself would slow down the next.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


def new_folder(name: str) -> Path:
    """A fresh folder that others may pass through, as Slurm asks of its spool."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_root()))
    folder.chmod(0o755)
    return folder


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="bireme-bench-"))
    root.chmod(0o755)
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root
