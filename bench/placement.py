"""The placement study on its default list: how long one run takes on one core, and what it reaches against FGD.

The authors' simulator takes about ten minutes for the same run (their README). Needs the openb lists beside the
project; without them there is nothing to measure, and the row says so.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path

from bench.results import Row, Target
from bench.sizes import Sizes
from bireme.sim.openb import Node, Pod, read_nodes, read_pods
from bireme.sim.placement import FIRST_SEED, reading_at, study

OPENB = Path(__file__).resolve().parents[2] / "shared" / "data" / "openb"
RUN_MAX_S = 20.0


def measure(sizes: Sizes) -> Iterator[Row]:
    if not OPENB.is_dir():
        yield Row("placement", "one run", 0.0, "s", note=f"not measured: {OPENB} is not there")
        return
    nodes = read_nodes(str(OPENB / "openb_node_list_gpu_node.csv"))
    pods = read_pods(str(OPENB / "openb_pod_list_default.csv.gz"))[: sizes.study_pods]
    nodes = nodes[:: max(1, -(-len(nodes) // sizes.study_nodes))]
    by_fgd = yield from _run(nodes, pods, "fgd")
    gain = (yield from _run(nodes, pods, "foresight")) - by_fgd
    yield Row("placement", "allocated at 130% demand, foresight above FGD", gain, "points", target=Target(">=", 0.0))


def _run(nodes: list[Node], pods: list[Pod], policy: str) -> Generator[Row, None, float]:
    began = time.process_time()
    found = study(nodes, pods, policy, FIRST_SEED)
    seconds = time.process_time() - began
    name = f"{policy}: one run of {len(pods):,} pods on {len(nodes):,} nodes, one core"
    yield Row("placement", name, seconds, "s", target=Target("<", RUN_MAX_S))
    return reading_at(found, 130).allocated
