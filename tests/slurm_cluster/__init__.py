"""A real Slurm for tests and benchmarks: what Bireme is compared with, and what its Slurm engine runs on.

    with running(Layout().having(PriorityType="priority/multifactor")) as slurm:
        slurm.call("sbatch", "--wrap", "hostname")

`missing()` says in one line why there can be none here. `BIREME_SLURM_ROOT` names another Slurm than the system's: a
prefix, or a folder with a whole system (debootstrap), which the daemons are then chrooted into.
"""

from tests.slurm_cluster.cluster import SlurmCluster, make_devices, missing, running
from tests.slurm_cluster.installation import Installation, installed
from tests.slurm_cluster.layout import EIGHT_NODES, SETTINGS, Layout

__all__ = [
    "EIGHT_NODES", "SETTINGS", "Installation", "Layout", "SlurmCluster", "installed", "make_devices", "missing",
    "running",
]  # fmt: skip
