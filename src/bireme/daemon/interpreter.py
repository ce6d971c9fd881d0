"""The Python that runs Bireme, to be started again: what it imports, and nothing that a user has set for theirs.

On many clusters a module sets PYTHONPATH to packages of another Python. Used by `process.py` for the daemon and by
`cli/launchers.py` for the commands. Invariant: what works once works again, from wherever it is started.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import bireme

_NEEDED = ("numpy", "msgspec", "rich")
"""Packages of either kind, in C and not: pip may keep them in two folders."""
_USERS = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP")


def import_paths() -> list[str]:
    """Where Bireme and what it needs are imported from, without `site` and its .pth files.

    Looked up, not asked of `sysconfig`: in a launcher, without `site`, that knows nothing of a virtual environment.
    """
    origins = [bireme.__file__, *(spec.origin for name in _NEEDED if (spec := find_spec(name)) and spec.origin)]
    return list(dict.fromkeys(os.path.dirname(os.path.dirname(os.path.abspath(origin))) for origin in origins))


def own_environment() -> dict[str, str]:
    """This process's variables, for another Python of Bireme's."""
    kept = {name: value for name, value in os.environ.items() if name not in _USERS}
    return {**kept, "PYTHONPATH": os.pathsep.join(import_paths()), "PYTHONSAFEPATH": "1"}
