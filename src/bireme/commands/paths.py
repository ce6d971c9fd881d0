"""Paths of the API's routes, made of names as people type them.

What is typed becomes one part of a path and no more, whatever letters it has: `scontrol update JobId=1/hold-open` asks
for a job of that name, which nobody has, and not for another route.
"""

from __future__ import annotations


def path_of(kind: str, *names: object) -> str:
    """`path_of("jobs", "42_7", "steps")`: the route of one thing, or of something of it."""
    return "/".join(("/v1", kind, *(str(name).replace("/", "%2F") for name in names)))
