"""Every key of Slurm's files, and every option of its commands, has a stand: applied, of no account here, or said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bireme.slurm.conf import keys, stands
from bireme.slurm.job_fields.table import FIELDS
from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Command

SOURCE = Path(__file__).parents[2] / "src" / "bireme"
NOT_READERS = {"keys.py", "stands.py", "show.py"}
"""Modules that name keys without reading them."""

FILES = {
    "slurm.conf": (keys.GLOBAL_KEYS, (stands.APPLIED, stands.OF_SLURMS_DAEMONS, frozenset(stands.NOT_APPLIED))),
    "cgroup.conf": (
        keys.CGROUP_KEYS,
        (stands.CGROUP_APPLIED, stands.CGROUP_OF_SLURMS_DAEMONS, frozenset(stands.CGROUP_NOT_APPLIED)),
    ),
}


@pytest.mark.parametrize("file", FILES)
def test_every_key_has_one_stand(file: str) -> None:
    known, tables = FILES[file]
    taken = [key for table in tables for key in table]
    assert sorted(taken) == sorted(known), sorted(set(taken) ^ set(known)) or "a key stands in two tables"


def texts() -> str:
    return "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name not in NOT_READERS)


def test_what_is_said_to_be_applied_is_read() -> None:
    """By its name, somewhere in the source."""
    text = texts()
    applied = stands.APPLIED | stands.CGROUP_APPLIED
    unread = [key for key in applied if not re.search(rf"[\"'\[]{key}[\"'=\]]", text)]
    assert not unread, f"said to be applied, and nothing reads them: {unread}"


@pytest.mark.parametrize(
    ("known", "of_daemons", "not_applied"),
    [
        (keys.NODE_KEYS, stands.NODE_OF_SLURMS_DAEMONS, stands.NODE_NOT_APPLIED),
        (keys.PARTITION_KEYS, frozenset(), stands.PARTITION_NOT_APPLIED),
        (keys.GRES_KEYS, frozenset(), {}),
        (keys.SWITCH_KEYS | keys.BLOCK_KEYS, frozenset(), {}),
        (keys.DOWN_NODES_KEYS | keys.NODE_SET_KEYS, frozenset(), {}),
    ],
    ids=["nodes", "partitions", "gres", "topology", "sets"],
)
def test_every_key_of_a_line_is_read_or_has_a_stand(
    known: frozenset[str], of_daemons: frozenset[str], not_applied: dict[str, str]
) -> None:
    assert set(not_applied) | of_daemons <= known
    text = "\n".join(path.read_text() for path in (SOURCE / "slurm/conf").glob("*.py") if path.name not in NOT_READERS)
    silent = [
        key for key in known - of_daemons - set(not_applied) if not re.search(rf"[\"']{key}[\"']", text, re.IGNORECASE)
    ]
    assert not silent, f"neither read nor said to be not applied: {silent}"


ALWAYS_SO = {"wait-all-nodes", "container-entrypoint-log"}
"""Ask for what is done anyway: a job starts when all its nodes are prepared, an entry point writes where its task does.
"""


@pytest.mark.parametrize("command", list(Command))
def test_every_option_is_read_or_says_that_it_is_not(command: Command) -> None:
    """An option without `ignored` sets a field of the job, or is read by its name outside the tables that list it."""
    tables = [SOURCE / "slurm/job_fields", SOURCE / "slurm/options/catalogue/launch_rows.py"]
    readers = [path for path in SOURCE.rglob("*.py") if not any(map(path.is_relative_to, tables))]
    text = "\n".join(path.read_text() for path in readers)
    of_fields = {field.option.name for field in FIELDS if field.option}
    silent = [
        option.name
        for option in TABLES[command].options
        if option.honoured
        and option.name not in ALWAYS_SO | of_fields
        and not option.alias_of
        and not re.search(rf"[\"']{re.escape(option.name)}[\"']", text)
    ]
    assert not silent, f"{command.value}: neither read nor said to be not applied: {silent}"
