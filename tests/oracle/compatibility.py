"""COMPATIBILITY.md: every option, command, field and setting that Slurm documents, and what Bireme makes of it.

`python -m tests.oracle.compatibility` prints it; `make compatibility` runs the oracle first and writes the file. Made
of `inventory.json` (what Slurm documents), Bireme's own tables, `differences.toml` (what is known to differ) and
`measured.json` (what the last run of the oracle counted): all of it is here without a Slurm, so a tidy test can check
that the file is current.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.oracle.compare import listed_differences
from tests.oracle.exercised import uses
from tests.oracle.inventory import load
from tests.oracle.normal import ADDED, DROPPED

from bireme.cli.interactive import sattach as sattach_command
from bireme.commands import sacct as sacct_command
from bireme.commands import scancel, sinfo, sprio, squeue, sshare, sstat
from bireme.slurm.conf import keys, stands
from bireme.slurm.formats.sacct_fields import SACCT_FIELDS
from bireme.slurm.formats.sinfo_fields import SINFO_FIELDS
from bireme.slurm.formats.squeue_fields import JOB_FIELDS
from bireme.slurm.formats.sstat_fields import SSTAT_FIELDS
from bireme.slurm.formats.step_fields import STEP_FIELDS
from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Command

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "bireme"
FILE = ROOT / "COMPATIBILITY.md"
MEASURED = Path(__file__).with_name("measured.json")
NEWER = Path(__file__).with_name("measured_newer.json")
"""The same with the newest Slurm that was given, by `BIREME_SLURM_ROOT=... python -m tests.oracle --out` this file."""
SAME, APPLIED, DIFFERS = "same", "applied, not compared", "differs"
NOT_APPLIED, REFUSED = "accepted, not applied", "refused"
STATUSES = (SAME, APPLIED, DIFFERS, NOT_APPLIED, REFUSED)


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    status: str
    how: str = ""


Judge = Callable[[str], Entry]


def _option(command: Command) -> Judge:
    table = TABLES[command]

    def judge(name: str) -> Entry:
        if name not in table:
            return Entry(name, REFUSED)
        reason = table[name].ignored or (table[table[name].key].ignored if table[name].alias_of in table else "")
        return Entry(name, NOT_APPLIED, reason) if reason else Entry(name, SAME)

    return judge


def _named(known: Iterable[str], refused: Mapping[str, str] = MappingProxyType({})) -> Judge:
    names = {name.lower() for name in known}

    def judge(name: str) -> Entry:
        return Entry(name, SAME if name.lower() in names - refused.keys() else REFUSED, refused.get(name.lower(), ""))

    return judge


def _key(known: Iterable[str], of_daemons: Iterable[str], not_applied: Mapping[str, str]) -> Judge:
    names = {name.lower() for name in known}
    silent = {name.lower() for name in of_daemons}
    said = {name.lower(): why for name, why in not_applied.items()}

    def judge(name: str) -> Entry:
        if name.lower() not in names:
            return Entry(name, REFUSED, "an unrecognized key")
        if name.lower() in silent:
            return Entry(name, NOT_APPLIED, "of Slurm's own daemons; kept, and shown")
        return Entry(name, NOT_APPLIED, said[name.lower()]) if name.lower() in said else Entry(name, SAME)

    return judge


_OPTION_WORD = re.compile(r"--([a-zA-Z][\w-]*)")


def _options_of(module: object) -> set[str]:
    """The long options in a command's own table."""
    return set(_OPTION_WORD.findall(Path(str(module.__file__)).read_text()))  # type: ignore[attr-defined]


def _scontrol(name: str) -> Entry:
    text = (SOURCE / "commands/scontrol/__init__.py").read_text()
    refused = re.search(rf'"{name}": actions\.unsupported\(\s*"\w+", "([^"]+)"\s*\)', text)
    if refused:
        return Entry(name, REFUSED, refused[1])
    return Entry(name, SAME if f'"{name}"' in text else REFUSED)


def judges() -> dict[str, Judge]:
    jobs = {*JOB_FIELDS.by_name, *STEP_FIELDS.by_name}
    return {
        **{f"{command.value} options": _option(command) for command in Command},
        "squeue options": _named(_options_of(squeue)),
        "sinfo options": _named(_options_of(sinfo)),
        "scancel options": _named(_options_of(scancel)),
        "sacct options": _named(_options_of(sacct_command), sacct_command.REFUSED),
        "sstat options": _named(_options_of(sstat)),
        "sprio options": _named(_options_of(sprio)),
        "sshare options": _named(_options_of(sshare)),
        "sattach options": _named(_options_of(sattach_command)),
        "squeue -o": _named({f"%{letter}" for letter in (*JOB_FIELDS.by_letter, *STEP_FIELDS.by_letter)}),
        "squeue -O": _named(jobs),
        "sinfo -o": _named({f"%{letter}" for letter in SINFO_FIELDS.by_letter}),
        "sinfo -O": _named(SINFO_FIELDS.by_name),
        "sacct -o": _named(SACCT_FIELDS),
        "sstat -o": _named(SSTAT_FIELDS),
        "scontrol commands": _scontrol,
        "slurm.conf": _key(keys.GLOBAL_KEYS, stands.OF_SLURMS_DAEMONS, stands.NOT_APPLIED),
        "slurm.conf nodes": _key(keys.NODE_KEYS, stands.NODE_OF_SLURMS_DAEMONS, stands.NODE_NOT_APPLIED),
        "slurm.conf partitions": _key(keys.PARTITION_KEYS, (), stands.PARTITION_NOT_APPLIED),
        "gres.conf": _key(keys.GRES_KEYS, (), {}),
        "topology.conf": _key(keys.SWITCH_KEYS | keys.BLOCK_KEYS, (), {}),
    }


def entries() -> dict[str, list[Entry]]:
    known = judges()
    inventory = load()
    assert inventory.keys() <= known.keys(), f"nobody judges {inventory.keys() - known.keys()}"
    differing = {name: one.reason for one in listed_differences() for name in one.touches}
    used = uses()
    return {
        kind: [_weighed(known[kind](name), kind, differing, used) for name in names]
        for kind, names in inventory.items()
    }


def _weighed(entry: Entry, kind: str, differing: dict[str, str], used: frozenset[str]) -> Entry:
    """What is applied is called the same only where a case of the oracle uses it and nothing is known to differ."""
    label = f"{kind} {entry.name.lower() if kind in ('sacct -o', 'sstat -o') else entry.name}"
    if entry.status == SAME and label in differing:
        return Entry(entry.name, DIFFERS, differing[label])
    if entry.status == SAME and label not in used:
        return Entry(entry.name, APPLIED)
    return entry


def document() -> str:
    found = entries()
    releases = sorted({release for names in load().values() for seen in names.values() for release in seen})
    parts = [_HEAD.format(releases=" and ".join(releases)), _measured(), _newer(), _totals(found)]
    parts += [_kind(kind, listed) for kind, listed in found.items()]
    parts.append(_differences())
    return "\n".join(parts)


_HEAD = """\
# Compatibility with Slurm

Generated by `make compatibility`; a test fails when it is not current. Names are those that the manual pages and the
commands of Slurm {releases} list. *same*: used by a case of the oracle, and both did the same. *applied, not
compared*: has its effect, and no case uses it. *differs*: with how. *accepted, not applied*: recorded where there is a
place for it, without effect; it is said where something is asked for (`sbatch` and `bireme explain SCRIPT` of options,
`bireme up` of keys). *refused*: an error that says so.
"""


def _measured() -> str:
    data = json.loads(MEASURED.read_text())
    return f"""\
## What was compared

The oracle (`tests/oracle`) runs the same cases on {data["slurm"]} and on Bireme with the same configuration
and compares item by item: a variable, a line of output, a field, a message, an exit code, a decision.

{_table(data["groups"])}"""


def _newer() -> str:
    data = json.loads(NEWER.read_text())
    return f"""\
## Beside {data["slurm"]}

The same cases, and those that only a newer Slurm can be asked (`BIREME_SLURM_ROOT=FOLDER python -m tests.oracle`).
Documents in JSON have the newer release's shape, variables are those of either release, and texts are those of 22.05:
where the newer release words one otherwise, that is counted as *version*. Variables that only one of the two releases
has are compared with that one: {_variables(ADDED)} (newer), {_variables(DROPPED)} (dropped since).

{_table(data["groups"])}"""


def _variables(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(groups: dict[str, Any]) -> str:
    lines = ["| group | cases | items | the same | | of the rest |", "|---|---|---|---|---|---|"]
    kinds, choices = Counter[str](), Counter[str]()
    for name, group in groups.items():
        lines.append(_row(name, group["cases"], group["items"], group["same"], _listed(group["kinds"])))
        kinds.update(group["kinds"])
        choices.update(group["choices"])
    total = {key: sum(group[key] for group in groups.values()) for key in ("cases", "items", "same")}
    lines.append(_row("**all**", total["cases"], total["items"], total["same"], _listed(kinds)))
    lines += ["", f"Where both start a job, on other nodes than Slurm's: {_listed(choices) or 'none'}.", ""]
    return "\n".join(lines)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def _row(name: str, cases: int, items: int, same: int, rest: str) -> str:
    return f"| {name} | {cases:,} | {items:,} | {same:,} | {100 * same / max(1, items):.1f}% | {rest} |"


def _totals(found: dict[str, list[Entry]]) -> str:
    lines = ["## Totals", "", f"| what | {' | '.join(STATUSES)} | all |", "|---|---|---|---|---|---|---|"]
    sums = Counter[str]()
    for kind, listed in found.items():
        counts = Counter(entry.status for entry in listed)
        sums.update(counts)
        lines.append(f"| {kind} | {' | '.join(str(counts[status]) for status in STATUSES)} | {len(listed)} |")
    lines.append(f"| **all** | {' | '.join(str(sums[status]) for status in STATUSES)} | {sums.total()} |")
    return "\n".join([*lines, ""])


def _kind(kind: str, listed: list[Entry]) -> str:
    lines = [f"## {kind}", ""]
    for status in STATUSES:
        plain = [f"`{entry.name}`" for entry in listed if entry.status == status and not entry.how]
        if plain:
            lines += [f"*{status}* ({len(plain)}): {', '.join(plain)}", ""]
        by_reason: dict[str, list[str]] = {}
        for entry in listed:
            if entry.status == status and entry.how:
                by_reason.setdefault(entry.how, []).append(f"`{entry.name}`")
        lines += [line for how, names in by_reason.items() for line in (f"*{status}*, {how}: {', '.join(names)}", "")]
    return "\n".join(lines)


def _differences() -> str:
    lines = ["## What is known to differ", "", "Each is a test: one that is gone must be taken from the list.", ""]
    lines += ["| where | what | kind | with | why |", "|---|---|---|---|---|"]
    for one in listed_differences():
        what = ", ".join(f"`{item}`" for item in one.items)
        lines.append(f"| `{one.cases}` | {what} | {one.kind} | {one.releases} | {one.reason} |".replace("||", "\\|\\|"))
    return "\n".join([*lines, ""])


def main() -> int:
    sys.stdout.write(document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
