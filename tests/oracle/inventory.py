"""What Slurm documents: options, fields, settings, commands, read from its manual pages and from its own lists.

`python -m tests.oracle.inventory` adds the names of the Slurm at hand (`BIREME_SLURM_ROOT` or the system's) to
`inventory.json`. Names only: facts that COMPATIBILITY.md goes through one by one.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

from tests.slurm_cluster import installed, running

FILE = Path(__file__).with_name("inventory.json")
PROGRAMS = ("sbatch", "srun", "salloc", "squeue", "sinfo", "scancel", "sacct", "sstat", "sprio", "sshare", "sattach")

Inventory = dict[str, dict[str, list[str]]]
"""Kind -> name -> the releases that document it."""

_OPTION_LINE = re.compile(r"^\\fB\\-.*$", re.MULTILINE)
_OPTION = re.compile(r"\\-\\-([a-z][a-zA-Z0-9]*(?:\\-[a-zA-Z0-9]+)*)")
_ITEM = re.compile(r"^\\fB(%?\w[\w/-]*)\\fR")
_SECTION = re.compile(r"^\.SH \"?([^\"\n]+)\"?$", re.MULTILINE)


def read(root: Path) -> dict[str, set[str]]:
    """The names of one Slurm, by kind."""
    found = {f"{name} options": _options(_page(root, 1, name)) for name in PROGRAMS}
    for name in ("squeue", "sinfo"):
        fields = _items(_page(root, 1, name))
        found[f"{name} -o"] = {word for _, word in fields if word.startswith("%") and len(word) == 2}
        below = _below(_page(root, 1, name), "\\-\\-Format")
        found[f"{name} -O"] = {word.lower() for word in below if not word.startswith("%")}
    verbs = _sections(_page(root, 1, "scontrol")).get("COMMANDS", "")
    found["scontrol commands"] = {word for depth, word in _items(verbs) if depth == 0 and word.islower()}
    sections = _sections(_page(root, 5, "slurm.conf"))
    found["slurm.conf"] = _keys(sections.get("PARAMETERS", ""))
    found["slurm.conf nodes"] = _keys(sections.get("NODE CONFIGURATION", ""))
    found["slurm.conf partitions"] = _keys(sections.get("PARTITION CONFIGURATION", ""))
    found["gres.conf"] = _keys(_page(root, 5, "gres.conf"))
    found["topology.conf"] = _keys(_page(root, 5, "topology.conf"))
    return found


def _items(text: str) -> list[tuple[int, str]]:
    """(how deep, name) of each item of the page's lists."""
    depth, found, heads = 0, [], False
    for line in text.splitlines():
        depth += line.startswith(".RS") - line.startswith(".RE")
        if heads and (word := _ITEM.match(line)):
            found.append((depth, word[1]))
        heads = line.startswith((".TP", ".IP"))
    return found


def _below(text: str, option: str) -> set[str]:
    """The items of the list that explains an option."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("\\fB\\-") and option in line)
    rest = range(start + 1, len(lines))
    last = next(place for place in rest if lines[place].startswith("\\fB\\-") and lines[place - 1].startswith(".TP"))
    return {word for _, word in _items("\n".join(lines[start:last]))}


def _page(root: Path, section: int, name: str) -> str:
    path = root / f"usr/share/man/man{section}/{name}.{section}.gz"
    return gzip.decompress(path.read_bytes()).decode(errors="replace")


def _options(text: str) -> set[str]:
    lines = (line for line in _OPTION_LINE.findall(text) if re.search(r"^\\fB\\-\\?-?\w", line))
    return {name.replace("\\-", "-") for line in lines for name in _OPTION.findall(line)}


def _sections(text: str) -> dict[str, str]:
    parts = _SECTION.split(text)
    return dict(zip(parts[1::2], parts[2::2]))


def _keys(text: str) -> set[str]:
    return {word for depth, word in _items(text) if depth == 0 and word[0].isupper() and not word.isupper()}


def with_release(inventory: Inventory, release: str, found: dict[str, set[str]]) -> Inventory:
    """The inventory with what this release documents, and without what it is said to document and does not."""
    merged: Inventory = {}
    for kind in inventory.keys() | found.keys():
        old, new = inventory.get(kind, {}), found.get(kind, set())
        names = {name: sorted({*old.get(name, []), release} if name in new else {*old[name]} - {release})
                 for name in old.keys() | new}  # fmt: skip
        merged[kind] = {name: names[name] for name in sorted(names, key=str.lower) if names[name]}
    return dict(sorted(merged.items()))


def load() -> Inventory:
    inventory: Inventory = json.loads(FILE.read_text())
    return inventory


def main() -> int:
    slurm = installed()
    found = read(Path(slurm.chroot or "/"))
    with running() as cluster:  # these two want an accounting storage before they list their fields
        for name in ("sacct", "sstat"):
            found[f"{name} -o"] = set(cluster.call(name, "-e").split())
    release = "{}.{:02}".format(*slurm.version)
    FILE.write_text(json.dumps(with_release(load() if FILE.exists() else {}, release, found), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
