"""What PyTorch Lightning does inside a job: on SIGUSR1 rank 0 has its own array task requeued; SIGTERM is ignored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

if os.environ.get("SLURM_RESTART_COUNT"):
    print("resumed", os.environ["SLURM_PROCID"])
    sys.exit(0)


def on_signal(*_: object) -> None:
    if os.environ["SLURM_PROCID"] == "0":
        task = os.environ["SLURM_ARRAY_JOB_ID"] + "_" + os.environ["SLURM_ARRAY_TASK_ID"]
        sys.exit(subprocess.call(["scontrol", "requeue", task]))


signal.signal(signal.SIGUSR1, on_signal)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("trains", os.environ["SLURM_PROCID"], flush=True)
while True:
    time.sleep(1)
