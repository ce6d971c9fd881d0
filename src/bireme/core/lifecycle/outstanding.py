"""Commands that the state says were given and that nothing has confirmed: sent again when a daemon starts.

Pure: derived from the state alone. Commands are idempotent: what was obeyed already is only confirmed again.
Invariant: whatever `apply` commands, and a crash may swallow, is either here or needs no repeating (a signal is not).
"""

from __future__ import annotations

from bireme.core.lifecycle.registry import KINDS
from bireme.core.model import commands as c
from bireme.core.state.state import State


def outstanding(state: State) -> list[c.Command]:
    return [command for kind in KINDS for command in kind.outstanding(state)]
