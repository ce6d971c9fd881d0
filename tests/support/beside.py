"""Which tests may run beside each other when pytest has several workers (`make test` gives it three), and their order.

Most tests that need a cluster wait most of the time, so that three workers keep two cores busy. What shares a cluster
stays with one worker: a module, or a folder whose conftest.py starts one for all of its modules. `tests/conftest.py`
hands the scheduler to pytest-xdist, and the order to pytest. Without workers nothing here is used.
Invariant: what takes longest begins first, so that no worker is left alone with it at the end; all others come in the
order in which they were collected. Those that need clusters come before `unit`, whose modules then fill what is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

SHARING = ("tests/integration/guests", "tests/kubernetes", "tests/oracle")
"""Folders that share one cluster, or one run of both systems."""
LONGEST = (
    "tests/kubernetes",
    "tests/oracle",
    "tests/simulation/test_worlds.py",
    "tests/integration/guests",
    "tests/integration/test_proctrack.py",
    "tests/integration/test_survival.py",
    "tests/integration/test_bench_smoke.py",
    "tests/conformance/test_slurm_scripts.py",
    "tests/integration/test_slurm_engine.py",
    "tests/integration/test_idle.py",
    "tests/integration/test_experiments.py",
    "tests/conformance/test_scripts.py",
    "tests/integration/test_router_succession.py",
    "tests/integration/test_services_survive.py",
    "tests/integration/test_telemetry.py",
)
"""The longest first. `tests/suite.py` prints at its end what took longest."""


class ByCluster(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid.partition("::")[0])


def scope_of(module: str) -> str:
    """What must stay with one worker, for a module's path from the root."""
    folders = {str(folder) for folder in PurePosixPath(module).parents}
    return next((folder for folder in SHARING if folder in folders), module)


def longest_first(modules: Iterable[str]) -> list[str]:
    """What they are part of, in the order in which it begins: each once, the modules in the order of collection."""
    scopes = dict.fromkeys(scope_of(module) for module in modules)
    return [*(scope for scope in LONGEST if scope in scopes), *(scope for scope in scopes if scope not in LONGEST)]
