"""Work for a GPU, of a kind that is told: run by the tests with a Python that has torch, nothing else is imported.

    python burner.py matmul|copy|spin|hold MIB|assert

Prints `up` when the work has begun, works until its standard input ends, and prints how many operations it did.
"""

from __future__ import annotations

import select
import sys

import torch

SIDE = 8192


def main(kind: str, mib: int) -> None:
    step = {"matmul": matmul, "copy": copy, "spin": spin, "hold": hold, "assert": fail}[kind](mib)
    step()
    torch.cuda.synchronize()
    print("up", flush=True)
    done = 0
    while not select.select([sys.stdin], [], [], 0 if kind != "hold" else 60)[0]:
        done += step()
        torch.cuda.synchronize()
    print(done, flush=True)


def matmul(_: int):
    """Tensor cores, nothing but: products of bf16. Counts floating-point operations."""
    left = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)
    out = torch.empty_like(left)

    def step() -> int:
        for _ in range(20):
            torch.matmul(left, right, out=out)
        return 20 * 2 * SIDE**3

    return step


def copy(_: int):
    """The memory, nothing but. Counts bytes."""
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)

    def step() -> int:
        for _ in range(50):
            target.copy_(source)
        return 50 * 2 * source.numel()

    return step


def spin(_: int):
    """One thread that waits on the GPU, as a collective does for a rank that does not come."""

    def step() -> int:
        torch.cuda._sleep(100_000_000)
        return 1

    return step


def hold(mib: int):
    """Memory, and no work."""
    kept = [torch.empty(mib << 20, device="cuda", dtype=torch.uint8)]
    return lambda: len(kept)


def fail(_: int):
    """An assertion on the device: an index that is out of range."""
    numbers, place = torch.zeros(10, device="cuda"), torch.tensor([100], device="cuda")
    print("up", flush=True)

    def step() -> int:
        float(numbers[place].sum())
        return 1

    return step


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)
