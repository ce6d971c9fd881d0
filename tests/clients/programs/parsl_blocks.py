"""A parsl program as its users write them: two Slurm blocks of one node each, and twenty calls of one function.

python parsl_blocks.py RUN_FOLDER       prints one JSON line: [square, job id, hostname] of every call
"""

from __future__ import annotations

import json
import os
import sys

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider


@parsl.python_app
def where(number: int) -> tuple[int, str, str]:
    import os
    import socket
    import time

    time.sleep(0.2)  # long enough for the other block to get its share
    return number * number, os.environ["SLURM_JOB_ID"], socket.gethostname()


def configuration(folder: str) -> Config:
    provider = SlurmProvider(
        partition="main",
        nodes_per_block=1,
        cores_per_node=2,
        mem_per_node=1,
        init_blocks=2,
        min_blocks=2,
        max_blocks=2,
        walltime="00:10:00",
        exclusive=True,
        launcher=SrunLauncher(),
        worker_init=f"export PATH={os.environ['PATH']}",
    )
    executor = HighThroughputExecutor(
        label="blocks", address="127.0.0.1", max_workers_per_node=1, provider=provider, encrypted=False
    )
    return Config(executors=[executor], run_dir=folder, strategy_period=0.5)


if __name__ == "__main__":
    with parsl.load(configuration(sys.argv[1])):
        futures = [where(number) for number in range(20)]
        answers = [future.result(timeout=90) for future in futures]
    print(json.dumps(answers))
