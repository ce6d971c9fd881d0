"""A tiny training run that survives being stopped: DDP over whatever torchrun started, a checkpoint after every step.

`train.sh` starts it. It uses the GPU where there is one (NCCL) and the CPU elsewhere (gloo), learns to imitate a fixed
random network, and appends one JSON line per step to `losses.jsonl` beside its checkpoint.
Invariant: the data of a step depends on the step alone, so a resumed run goes on exactly where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    given = _arguments()
    device = _join(given.backend)
    torch.manual_seed(1)  # every rank and every start has the same teacher and the same beginner
    teacher, student = _network(32).to(device), DistributedDataParallel(_network(128).to(device))
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-4)
    given.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = given.folder / "checkpoint.pt"
    done = _load(checkpoint, student, optimizer, device)
    start = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if dist.get_rank() == 0:
        print(f"start {start}: after step {done} on {_name_of(device)} with {dist.get_backend()}", flush=True)
    loss = float("nan")  # a run that was over before it was requeued makes no step
    for step in range(done + 1, given.steps + 1):
        loss = _train(step, teacher, student, optimizer, device)
        if dist.get_rank() == 0:
            _save(checkpoint, step, student, optimizer)
            _note(given.folder, step=step, loss=loss, start=start, device=_name_of(device))
        while step == given.hold_at and start == 0:
            time.sleep(1)  # until somebody requeues the job
    if dist.get_rank() == 0:
        print(f"done: {given.steps} steps, loss {loss:.5f}", flush=True)
    dist.destroy_process_group()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a tiny network for a few steps.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--folder", type=Path, default=Path("run"), help="where the checkpoint and the losses go")
    parser.add_argument("--backend", default="", help="nccl or gloo (default: nccl on a GPU, gloo without)")
    parser.add_argument(
        "--hold-at", type=int, default=0, metavar="STEP", help="wait here in the first start, to be requeued for sure"
    )
    return parser.parse_args()


def _join(backend: str) -> torch.device:
    """Meets the other ranks; returns the device of this one."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(backend or ("nccl" if on_gpu else "gloo"))
    return device


def _network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 1))


def _train(
    step: int, teacher: nn.Module, student: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device
) -> float:
    """One step on this rank's part of the data; returns the loss before it."""
    dice = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    inputs = torch.randn(512, 16, generator=dice).to(device)
    with torch.no_grad():
        wanted = teacher(inputs)
    loss = nn.functional.mse_loss(student(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _load(file: Path, student: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Takes up the checkpoint, if there is one; returns the steps it has behind it."""
    if not file.exists():
        return 0
    saved = torch.load(file, map_location=device, weights_only=True)
    student.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def _save(file: Path, step: int, student: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Whole or not at all: the job may be stopped at any moment."""
    fresh = file.with_suffix(".new")
    torch.save({"step": step, "model": student.state_dict(), "optimizer": optimizer.state_dict()}, fresh)
    os.replace(fresh, file)


def _note(folder: Path, **facts: object) -> None:
    with open(folder / "losses.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")


def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    main()
