"""Which tests may run beside each other when pytest has several workers (`make test` gives it two).

Most tests that need a cluster wait most of the time, so two workers halve the time of the whole. What shares a
cluster stays with one worker: a module, or a folder whose conftest.py starts one for all of its modules.
`tests/conftest.py` hands it to pytest-xdist. Without workers nothing here is used.
Invariant: in the order in which they were collected. The long ones, which need clusters, come before `unit`, whose
modules then fill what is left.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

SHARING = ("tests/integration/guests", "tests/oracle")
"""Folders that share one cluster, or one run of both systems."""


class ByCluster(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid.partition("::")[0])


def scope_of(module: str) -> str:
    """What must stay with one worker, for a module's path from the root."""
    folders = {str(folder) for folder in PurePosixPath(module).parents}
    return next((folder for folder in SHARING if folder in folders), module)
