"""What of a home beside its journal is not what was written: the other half of `bireme store verify`.

Reads only. Not here: the journal (`store/inspection`), what people write themselves (bireme.toml), and what every start
writes anew (launchers, process ids, logs).
"""

from __future__ import annotations

import os
from pathlib import Path

from bireme.agent.records import read_records
from bireme.daemon.files import DamagedFileError, read_sealed
from bireme.daemon.paths import Paths


def inspect(paths: Paths) -> list[str]:
    """What is damaged, each in a sentence."""
    return [*_remembered(paths), *_agents(paths)]


def _remembered(paths: Paths) -> list[str]:
    found = []
    for path in (paths.conf_in_force, paths.engine_in_force, paths.settings_in_force):
        try:
            if read_sealed(path) is None and os.path.exists(paths.mark):
                found.append(f"{path} is gone")
        except DamagedFileError as error:
            found.append(str(error))
    return found


def _agents(paths: Paths) -> list[str]:
    found = []
    for records in sorted(Path(paths.agents).glob("*/tasks.jsonl")):
        if lines := read_records(records).damaged:
            named = ", ".join(map(str, lines[:10]))
            found.append(f"{'line' if len(lines) == 1 else 'lines'} {named} of {records}: not what was written")
    return found
