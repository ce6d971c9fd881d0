"""What every --json answer has around its records, and the text of it: JSON or YAML.

The shape is that of Slurm 26.05. Numbers that may be unset or unlimited are triples {"set", "infinite", "number"}.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bireme.slurm.version import SLURM_VERSION

Shape = dict[str, Any]
PARSER = "data_parser/v0.0.45"


def triple(value: float | None, *, infinite: bool = False) -> Shape:
    """A number that may be absent; `infinite` says that absence means no limit."""
    if value is None:
        return {"set": False, "infinite": infinite, "number": 0}
    return {"set": True, "infinite": False, "number": value}


def stamp(at: float | None) -> Shape:
    """A time in whole seconds; absent is set and zero, as Slurm has it."""
    return {"set": True, "infinite": False, "number": int(at or 0)}


def exit_shape(code: int | None, signal: int | None) -> Shape:
    status = "SIGNALED" if signal else "ERROR" if code else "SUCCESS"
    named = {"id": {"set": bool(signal), "infinite": False, "number": signal or 0}, "name": ""}
    return {"status": [status], "return_code": triple(code or 0), "signal": named}


def envelope(command: str, body: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Shape:
    """The records with `meta`, `errors` and `warnings`. `more`: times such as last_update, as triples."""
    major, minor, micro = SLURM_VERSION.split(".")
    return {
        **body,
        **{name: triple(value) for name, value in (more or {}).items()},
        "meta": {
            "plugin": {"type": "", "name": "", "data_parser": PARSER, "accounting_storage": ""},
            "client": {"source": "", "user": "", "group": ""},
            "command": [command],
            "slurm": {
                "version": {"major": major, "micro": micro, "minor": minor},
                "release": SLURM_VERSION,
                "cluster": "",
            },
        },
        "errors": [],
        "warnings": [],
    }


def dump(shape: Shape, *, yaml: bool = False) -> str:
    if yaml:
        return "---\n" + "\n".join(_yaml(shape, 0)) + "\n...\n"
    return _json(shape)


def _json(shape: Shape) -> str:
    """A line for each record: ten thousand of them indented would cost seconds, as only the compact form is quick."""
    parts = []
    for key, value in shape.items():
        if isinstance(value, list) and value:
            records = ",\n    ".join(json.dumps(record) for record in value)
            parts.append(f"  {json.dumps(key)}: [\n    {records}\n  ]")
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _yaml(value: Any, depth: int) -> list[str]:
    """Block style; scalars in JSON's notation, which every YAML reader takes."""
    pad = "  " * depth
    if isinstance(value, dict) and value:
        lines: list[str] = []
        for key, inner in value.items():
            lines += _entry(f"{pad}{json.dumps(str(key))}:", inner, depth)
        return lines
    if isinstance(value, list) and value:
        return [line for inner in value for line in _entry(f"{pad}-", inner, depth)]
    return [f"{pad}{json.dumps(value)}"]


def _entry(head: str, inner: Any, depth: int) -> list[str]:
    if isinstance(inner, dict | list) and inner:
        return [head, *_yaml(inner, depth + 1)]
    return [f"{head} {json.dumps(inner)}"]
