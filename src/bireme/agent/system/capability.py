"""What this machine grants or refuses, as `bireme doctor` shows it.

Pure value. Made by the `probe` functions of `namespaces` and `confinement`, which try things out instead of
guessing from versions.

Invariant: `why` is never empty: how it works when granted, one sentence on the cause when refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capability:
    name: str
    ok: bool
    why: str
