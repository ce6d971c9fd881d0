"""`python -I -m bireme.evidence`: reads a job's outputs with its owner's identity, for a daemon that has more rights.

A request comes as JSON on standard input, the answer goes as JSON to standard output:

    {"owner_uid": 1000, "outputs": [{"path": "/home/a/slurm-42.out", "rank": null, "node": ""}],
     "rules": "/etc/bireme/rules.d", "limits": {"seconds": 30}}
    {"clues": [...], "ends": [...], "problems": [...]}                  (see `wire`; errors: {"error": "..."}, code 2)

Who starts it gives it the owner's user and groups, no other descriptors, `OPENBLAS_NUM_THREADS=1`, and ends it when its
time is over: a file system that hangs cannot be left from within. It writes nothing, has bounded memory and CPU time,
and one thread, whose signals end searches that take too long. Invariant: it reads as nobody but the owner, and only
what is the owner's, because others will see the answer.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from bireme.bound_process import bind
from bireme.evidence.logs import Found, Limits
from bireme.evidence.reading import Output, Reader
from bireme.evidence.rulebook import load
from bireme.evidence.searching import Searcher
from bireme.evidence.wire import clue_data, line_data

MOST_REQUEST = 16 << 20
_MEMORY = 1 << 30
"""More than the program has when it begins."""
_DESCRIPTORS = 64
_SPARE_S = 30
"""CPU seconds for rules and dumps, beside those for reading."""


class RequestError(ValueError):
    """A request that cannot be read; the text says what is wrong with it."""


def main() -> int:
    try:
        request = _request(sys.stdin.buffer.read(MOST_REQUEST + 1))
        answer = _answer(request)
    except RequestError as error:
        print(json.dumps({"error": str(error)}))
        return 2
    except MemoryError:
        print(json.dumps({"error": "it needs more memory than it may have"}))
        return 2
    print(json.dumps(answer))
    return 0


def _request(data: bytes) -> Mapping[str, Any]:
    if len(data) > MOST_REQUEST:
        raise RequestError(f"a request has at most {MOST_REQUEST} bytes")
    try:
        request = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError("the request is no JSON") from error
    if not isinstance(request, Mapping) or not isinstance(request.get("outputs"), list):
        raise RequestError("a request has a list of outputs")
    owner = request.get("owner_uid")
    if not isinstance(owner, int) or owner != os.geteuid():
        raise RequestError(f"it runs as user {os.geteuid()}, and reads that user's files only, not those of {owner}")
    return request


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    limits = _limits(request.get("limits"))
    outputs = [_output(each) for each in request["outputs"]]
    rules = request.get("rules")
    loaded = load(Path(rules) if isinstance(rules, str) and rules else None)
    _bind(limits)
    with Searcher(loaded.book()) as searcher:
        found = Reader(searcher, owner=os.geteuid(), strictly=True, limits=limits).read(outputs)
        found.add(Found(problems=[*loaded.problems, *searcher.problems]))
    return {
        "clues": [clue_data(clue) for clue in found.clues],
        "ends": [line_data(line) for line in found.ends],
        "problems": found.problems,
    }


def _output(data: Any) -> Output:
    if not isinstance(data, Mapping) or not isinstance(data.get("path"), str) or not data["path"].startswith("/"):
        raise RequestError("an output has a path from the root on")
    rank, node = data.get("rank"), data.get("node")
    return Output(
        path=data["path"],
        rank=rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None,
        node=node if isinstance(node, str) else "",
    )


def _limits(given: Any) -> Limits:
    """Those of the house, or less."""
    limits = Limits()
    for each in fields(Limits):
        value = given.get(each.name) if isinstance(given, Mapping) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < getattr(limits, each.name):
            kind = type(getattr(limits, each.name))
            limits = replace(limits, **{each.name: kind(value)})
    return limits


def _bind(limits: Limits) -> None:
    """Takes from this process what reading does not need."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    bind(memory_bytes=mapped + _MEMORY, cpu_s=int(limits.seconds) + _SPARE_S, descriptors=_DESCRIPTORS)


if __name__ == "__main__":
    sys.exit(main())
