"""Something that a gatherer told once: an Xid, a line of the kernel's, a GPU that came or went. A value.

The same as `ports.Happened`, which the core cannot import.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """`task`: `JOB.GENERATION.STEP.TASK` of the process that it names; empty: nobody's, or not known."""

    at: float
    node: str
    kind: str
    uuid: str = ""
    code: int = 0
    pid: int = 0
    task: str = ""
    text: str = ""

    @property
    def quoted(self) -> str:
        """As evidence: the line itself, or what the driver's event said."""
        if self.kind in ("xid", "sxid"):
            name = "Xid" if self.kind == "xid" else "SXid"
            pid = f", pid={self.pid}" if self.pid else ""
            return f"{name} {self.code}{pid}" + (f", {self.text}" if self.text else "")
        return self.text or self.kind
