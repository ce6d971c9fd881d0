"""`python -I -m bireme.evidence.checkpoints`: looks for jobs' newest checkpoints with their owner's identity.

A request comes as JSON on standard input, the answer goes as JSON to standard output:

    {"owner_uid": 1000, "jobs": [{"id": 42, "folder": "/home/a/run", "path": "out/%j", "since": 1.7e9,
     "known": "/home/a/run/out/step-400"}], "seconds": 10}
    {"jobs": [{"id": 42, "found": {"path": ..., "step": 500, "saved_at": ..., "layout": ...}, "passed_over": [...],
     "gone": false}]}

`known`: what was found before; `gone`: it is there no more.

Who starts it gives it the owner's user and groups, and ends it when its time is over: a file system that hangs cannot
be left from within. It writes nothing, and has bounded memory and CPU time.
Invariant: it looks as nobody but the owner.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from bireme.bound_process import bind
from bireme.evidence.checkpoints.looking import SECONDS, Looker, Wanted

MOST_REQUEST = 4 << 20
_MEMORY, _CPU_S, _DESCRIPTORS = 512 << 20, 60, 64


def main() -> int:
    try:
        request = json.loads(sys.stdin.buffer.read(MOST_REQUEST))
        owner = request["owner_uid"]
        if owner != os.geteuid():
            raise ValueError(f"it runs as user {os.geteuid()}, and looks at nobody's files but that user's")
        seconds = min(SECONDS, float(request.get("seconds", SECONDS)))
        jobs = [(int(each["id"]), _wanted(each), str(each.get("known") or "")) for each in request["jobs"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        print(json.dumps({"error": f"the request cannot be read: {error}"}))
        return 2
    bind(memory_bytes=_MEMORY, cpu_s=_CPU_S, descriptors=_DESCRIPTORS)
    # A few at the beginning must not take the time of all others.
    looker = Looker(seconds=max(0.5, seconds / max(1, len(jobs))))
    told = [{"id": job, **_told(looker, wanted), "gone": _is_gone(known)} for job, wanted, known in jobs]
    print(json.dumps({"jobs": told}))
    return 0


def _wanted(data: Mapping[str, Any]) -> Wanted:
    folder = str(data["folder"])
    if not folder.startswith("/"):
        raise ValueError("a folder has a path from the root on")
    return Wanted(folder=folder, path=str(data.get("path") or ""), since=float(data.get("since") or 0.0))


def _is_gone(known: str) -> bool:
    """Only where that is certain: a folder that cannot be looked into is not gone."""
    try:
        os.lstat(known or "/")
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        pass
    return False


def _told(looker: Looker, wanted: Wanted) -> dict[str, Any]:
    answer = looker.newest(wanted)
    found = answer.found
    return {
        "found": None
        if found is None
        else {"path": found.path, "step": found.step, "saved_at": found.saved_at, "layout": found.layout},
        "passed_over": list(answer.passed_over),
    }


if __name__ == "__main__":
    sys.exit(main())
