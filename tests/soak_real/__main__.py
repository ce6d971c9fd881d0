"""`python -m tests.soak_real --seconds 600`: exits with 1 and the story where something broke."""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from tests.soak_real.soak import Broken, Figures, make_cluster, soak
from tests.support.cluster import Cluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_real", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.0, help="for so long (default: 60, or until --kills)")
    parser.add_argument("--kills", type=int, default=0, help="until so many kills, or --seconds, if that is first")
    parser.add_argument("--seed", type=int, default=None, help="of jobs, victims and moments (default: of the clock)")
    given = parser.parse_args()
    seed = int(time.time()) if given.seed is None else given.seed
    seconds = given.seconds if given.seconds or given.kills else 60.0
    print(f"seed {seed}", flush=True)
    cluster = make_cluster()
    try:
        with cluster.running():
            try:
                figures = soak(cluster, seed, seconds=seconds, kills=given.kills, told=_tell)
            except Broken:
                _keep(cluster)
                raise
    except Broken as broken:
        print(f"BROKEN\n{broken}", file=sys.stderr)
        return 1
    print(f"nothing was lost, ran twice or was left behind: {figures}")
    return 0


def _keep(cluster: Cluster) -> None:
    """The journal, the logs and what the jobs wrote, for whoever looks for the cause."""
    kept = f"{cluster.folder}-kept"
    shutil.copytree(cluster.folder, kept, symlinks=True, ignore=shutil.ignore_patterns("*.sock", "blobs"))
    print(f"everything is kept in {kept}", file=sys.stderr)


def _tell(figures: Figures) -> None:
    print(figures, flush=True)


if __name__ == "__main__":
    sys.exit(main())
