"""Folders that are images: what a container's root needs, and no more. For tests that run something in one.

`busybox` is Debian's static one: no libc, no loader, no interpreter but `sh`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path

import pytest


def busybox_root(folder: Path, owner: str | None = None) -> Path:
    """A folder with busybox and all its applets, of this owner."""
    program = shutil.which("busybox")
    if program is None:
        pytest.skip("not installed: busybox (Debian's busybox-static)")
    for name in ("bin", "etc", "tmp"):
        (folder / name).mkdir(parents=True)
    shutil.copy(program, folder / "bin/busybox")
    for applet in subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet != "busybox":
            (folder / "bin" / applet).symlink_to("busybox")
    (folder / "etc/made-by").write_text("the test\n")
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    if owner is not None and os.geteuid() == 0:
        entry = pwd.getpwnam(owner)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid, follow_symlinks=False)
    return folder
