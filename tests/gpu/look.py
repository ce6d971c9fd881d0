"""What a job sees of the GPUs, as one JSON line; run inside jobs, with nothing but the standard library.

Arguments: the device files to open, then optionally `--torch PYTHON` to ask that Python's torch as well.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "ZE_AFFINITY_MASK",
)
ASK_TORCH = """
import torch
free = torch.cuda.is_available()
total = float((torch.ones(1024, device="cuda") * 2).sum()) if free else None
print(torch.cuda.device_count() if free else 0, torch.cuda.get_device_name(0) if free else "none", total)
"""


def main() -> None:
    files, _, python = " ".join(sys.argv[1:]).partition(" --torch ")
    seen = {
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "files": {file: _opened(file) for file in files.split()},
        "nvidia_smi": _printed("nvidia-smi", "-L"),
        "torch": _printed(python, "-c", ASK_TORCH) if python else None,
    }
    print(json.dumps(seen))


def _opened(file: str) -> str:
    try:
        os.close(os.open(file, os.O_RDWR))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "opened"


def _printed(*argv: str) -> str | None:
    program = shutil.which(argv[0])
    if program is None:
        return None
    done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, timeout=120, check=False)
    return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip()


if __name__ == "__main__":
    main()
