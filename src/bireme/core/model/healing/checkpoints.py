"""A checkpoint of a job, as a process of its owner's has found it: where it lies, from which step, and how old it is.

A value. Who looks is the daemon's keeper of checkpoints; what was found is a fact of the journal (`JobCheckpointed`).
Invariant: a checkpoint that is named here was whole when it was looked at.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    path: str
    """Of a file, or of the folder that is one checkpoint."""
    saved_at: float
    """When its newest file was last changed."""
    step: int | None = None
    """Of the training, where its layout says it."""
    layout: str = ""
    """`hf-trainer`, `torch.distributed`, `orbax`, `lightning`, `deepspeed`, `megatron`, `folder` or `file`."""
    passed_over: tuple[str, ...] = ()
    """What is newer and not whole, each with why."""
