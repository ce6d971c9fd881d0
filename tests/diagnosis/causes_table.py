"""The table of causes in docs/diagnosis.md, made of the rules' own files.

    python -m tests.diagnosis.causes_table          prints it
    python -m tests.diagnosis.causes_table --write  puts it into the page, between its two marks

A tidy test compares the page with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bireme.evidence.rulebook import load

PAGE = Path(__file__).parents[2] / "docs" / "diagnosis.md"
BEGIN = "<!-- causes: python -m tests.diagnosis.causes_table --write -->"
END = "<!-- end of causes -->"


def table() -> str:
    rows = ["| id | cause | who | hardware | what to do |", "|---|---|---|---|---|"]
    for cause in sorted(load().causes.values(), key=lambda each: (each.family, each.id)):
        actions = "; ".join(action.replace("|", "\\|") for action in cause.actions)
        hardware = "yes" if cause.is_hardware else ""
        rows.append(f"| `{cause.id}` | {cause.title} | {cause.who} | {hardware} | {actions} |")
    return "\n".join(rows)


def with_table(page: str) -> str:
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{PAGE.name} needs the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(with_table(PAGE.read_text()))
    else:
        print(table())
