"""What a job of the suite does, in a few words that bash and a simulated node both understand.

An engine that runs processes gets `script`; one that only pretends reads the fields. Nothing here runs anything.
Invariant: every run of a program leaves one line in the file `ran.JOB` of its folder, so that runs can be counted.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

LOOK_AGAIN_S = 0.02
"""How often a waiting script looks for its gate: for people it is at once, for a busy machine it is nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Says something, waits for a gate (a file) to open, ends."""

    says: str = ""
    waits_for: str = ""
    """Name of the gate; empty: it ends at once."""
    exits: int = 0
    dies_of: int = 0
    """A signal that it sends to itself at the end, instead of exiting."""
    on_signal: tuple[tuple[int, int], ...] = ()
    """(signal, exit code): it listens to the signal and ends with the code."""
    ignores: tuple[int, ...] = ()
    """Signals that do nothing to it."""
    beats: bool = False
    """While it waits, the file `beats.JOB` grows: it is seen to stand still and to go on."""

    @property
    def script(self) -> str:
        """The program as a bash script; its folder is the working directory."""
        lines = ["#!/bin/bash"]
        lines += [f"trap 'exit {code}' {_name(number)}" for number, code in self.on_signal]
        lines += [f"trap '' {_name(number)}" for number in self.ignores]
        lines.append('echo run >> "ran.$SLURM_JOB_ID"')
        if self.says:
            lines.append(f"echo {self.says}")
        if self.waits_for:
            beat = 'echo . >> "beats.$SLURM_JOB_ID"; ' if self.beats else ""
            lines.append(f"while [ ! -e {self.waits_for} ]; do {beat}sleep {LOOK_AGAIN_S}; done")
        lines.append(f"kill -{_name(self.dies_of)} $$" if self.dies_of else f"exit {self.exits}")
        return "\n".join(lines) + "\n"


def _name(number: int) -> str:
    return signal.Signals(number).name.removeprefix("SIG")
