"""What series are of: nodes, GPUs, tasks, and what a task does on a GPU.

Apart from `curves`, so that who only names subjects (a gatherer, one on every machine) does without numpy.
Invariant: imports nothing but the list of metrics (`tests/tidy/test_imports_at_start.py` watches what comes of it).
"""

from __future__ import annotations

from dataclasses import dataclass

from bireme.core.telemetry.metrics import About


@dataclass(frozen=True, slots=True)
class Subject:
    """What a series is of. Of a node its name, of a GPU its UUID, of a task `JOB.GENERATION.STEP.TASK`, of the use of a
    GPU by a task `JOB.GENERATION.STEP.TASK@UUID`."""

    about: About
    node: str
    id: str
