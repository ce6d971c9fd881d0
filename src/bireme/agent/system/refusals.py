"""Why the kernel refuses a namespace, in words: the usual cause, as far as it lets one see, and the setting to change.

Used wherever namespaces are asked for (`confining/namespaces`, `boxes`). Invariant: nothing is tried here.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


def namespace_refusal(error: OSError) -> str:
    """One clause, without a full stop."""
    if _setting("user/max_user_namespaces") == "0" or error.errno == errno.ENOSPC:
        return "user namespaces are switched off or used up (sysctl user.max_user_namespaces)"
    if os.geteuid() == 0 and error.errno == errno.EPERM:
        return "this root may not make namespaces (a container without CAP_SYS_ADMIN?)"
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "user namespaces are for root only (sysctl kernel.unprivileged_userns_clone=1 allows them)"
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "AppArmor restricts user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0 allows them)"
    if error.errno == errno.ENOSYS:
        return "it needs Linux 5.12"
    what = f" ({error.filename})" if error.filename else ""
    return f"the kernel refused: {error.strerror}{what}"


def _setting(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None
