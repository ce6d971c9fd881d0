"""The import contracts, held against the source and against the map in ARCHITECTURE.md: they have no holes."""

from __future__ import annotations

import ast
import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "bireme"
ROOTS = {"daemon", "sim"}
"""Where engines and databases are chosen."""


def contract(name: str) -> dict[str, list[str]]:
    found = ConfigParser()
    found.read(ROOT / ".importlinter")
    return {key: value.split() for key, value in found[f"importlinter:contract:{name}"].items()}


def layers(name: str) -> list[str]:
    """All that are named, from above."""
    return [word for word in contract(name)["layers"] if word not in ("|", ":")]


def rooms(folder: Path) -> set[str]:
    """The packages and modules right below."""
    packages = {each.name for each in folder.iterdir() if (each / "__init__.py").exists()}
    return packages | {each.stem for each in folder.glob("*.py") if not each.stem.startswith("__")}


def sources(name: str) -> set[str]:
    return {word.removeprefix("bireme.") for word in contract(name)["source_modules"]}


def test_every_room_is_in_a_contract() -> None:
    folders = {
        "layers": "",
        "core-layers": "core",
        "faults-layers": "core/faults",
        "engines": "engines",
        "router-layers": "router",
        "agent-layers": "agent",
        "api-layers": "api",
        "web-layers": "web",
    }
    for name, folder in folders.items():
        assert set(layers(name)) - {"__main__"} == rooms(PACKAGE / folder), name
        assert contract(name)["exhaustive"] == ["True"]


def test_the_map_of_the_documentation_is_the_one_that_is_checked() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(
        r"^\| `([a-z_]+)(?:/|\.py)[a-z/]*` \|", text.split("## The map")[1].split("\n## ")[0], re.MULTILINE
    )
    assert list(dict.fromkeys(rows)) == layers("layers")
    inside = re.search(r"\| `core/` \| the rules: (.*) \(import downwards, right to left\)", text)
    assert inside is not None
    found = ConfigParser()
    found.read(ROOT / ".importlinter")
    checked = found["importlinter:contract:core-layers"]["layers"].strip().splitlines()
    ranks = [set(words.split()) for words in re.findall(r"`([\w ]+)`", inside[1])]
    assert ranks == [set(rank.replace(":", " ").split()) for rank in checked[::-1]]


def test_whoever_may_not_know_is_named() -> None:
    everybody = rooms(PACKAGE)
    assert sources("database") == everybody - {"store"}
    assert sources("which-store") == everybody - {"store"} - ROOTS
    assert sources("which-engine") == everybody - {"engines", "testing"} - ROOTS


def test_the_modules_of_the_database_are_named() -> None:
    """All of the store that are about it, and not only those that import it themselves."""
    imports = {each.stem: imported(each) for each in (PACKAGE / "store").glob("*.py")}
    for package in rooms(PACKAGE / "store") - set(imports):
        imports[package] = set().union(*map(imported, (PACKAGE / "store" / package).rglob("*.py")))
    about = {name for name, modules in imports.items() if "sqlite3" in modules}
    named = {word.removeprefix("bireme.store.") for word in contract("which-store")["forbidden_modules"]}
    assert about <= named
    for free in rooms(PACKAGE / "store") - named:
        assert not imports[free] & named, f"store/{free} may be used by all, and leads to the database"


def imported(module: Path) -> set[str]:
    """Names of what it imports; of the store its own modules, by their last name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module == "bireme.store"):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.removeprefix("bireme.store."))
    return found
