"""What of a home beside its journal is not what was written: the other half of `bireme store verify`.

And what there tells that a home had a journal, when journal and mark are both gone.
Reads only. Not here: the journal (`store/inspection`), what people write themselves (bireme.toml), and what every start
writes anew (launchers, process ids, logs).
"""

from __future__ import annotations

import os
from pathlib import Path

from bireme.agent.census import living_agents
from bireme.agent.records import read_records
from bireme.daemon.files import DamagedFileError, read_sealed
from bireme.daemon.paths import Paths
from bireme.slurm.hostlist import compress
from bireme.store.guard import LostEventsError, is_absent
from bireme.store.series.database import aside_of
from bireme.store.series.inspection import inspect as inspect_series


def vanished_journal(paths: Paths) -> str:
    """In words, that journal and mark are gone from a home that had them; empty where they are there or never were."""
    if not is_absent(paths.journal) or os.path.exists(paths.mark):
        return ""
    signs = _signs_of_a_past(paths)
    if not signs:
        return ""
    return f"the journal {paths.journal} and its mark are gone, and this home had them: {'; '.join(signs)}"


def check_journal_there(paths: Paths) -> None:
    """Raises LostEventsError. To be asked before a start writes anything."""
    if problem := vanished_journal(paths):
        raise LostEventsError(paths.journal, f"{problem} (for a new cluster, name another BIREME_HOME)")


def _signs_of_a_past(paths: Paths) -> list[str]:
    """Not the log: a first start that failed has one. Nor a file that names no engine: it is made before the start."""
    signs = []
    try:
        remembered = bool(read_sealed(paths.engine_in_force))
    except DamagedFileError:
        remembered = True
    if remembered:
        signs.append(f"{paths.engine_in_force} tells of an earlier start")
    if os.path.exists(paths.journal + "-wal"):
        signs.append(f"{paths.journal}-wal is there")
    if records := sorted(file.parent.name for file in Path(paths.agents).glob("*/tasks.jsonl")):
        signs.append(f"{paths.agents} has records of {compress(records)}")
    if living := living_agents(paths.home):
        signs.append(f"agents of {compress(sorted(living.values()))} run, and may hold jobs")
    return signs


def left_aside(paths: Paths) -> list[str]:
    """Files of measurements that were found damaged, set aside and are still there."""
    return aside_of(paths.series)


def inspect(paths: Paths) -> list[str]:
    """What is damaged, each in a sentence."""
    return [*_remembered(paths), *_agents(paths), *inspect_series(paths.series)]


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
