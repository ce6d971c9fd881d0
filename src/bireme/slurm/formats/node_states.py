"""The words for a node's state: `idle`, `mix`, `drng*`, `IDLE+DRAIN`; and the lists sinfo filters by.

A NodeRecord has a base state and flags; Slurm shows one word made of both. The order of the rules below is Slurm's:
what an operator did to a node hides what it is doing.
"""

from __future__ import annotations

from collections.abc import Callable

from bireme.slurm.errors import SlurmSyntaxError
from bireme.slurm.formats.values import Record

_COMPACT = {
    "allocated": "alloc", "completing": "comp", "drained": "drain", "draining": "drng", "failing": "failg",
    "future": "futr", "mixed": "mix", "planned": "plnd", "reserved": "resv", "unknown": "unk",
    "powering_up": "pow_up", "powering_down": "pow_dn", "powered_down": "pow_dn",
}  # fmt: skip
_BASE_CODE = {"UNKNOWN": 0, "DOWN": 1, "IDLE": 2, "ALLOCATED": 3, "ERROR": 4, "MIXED": 5, "FUTURE": 6}
_FLAG_CODE = {
    "RESERVED": 1 << 5,
    "CLOUD": 1 << 7,
    "DRAIN": 1 << 9,
    "COMPLETING": 1 << 10,
    "NOT_RESPONDING": 1 << 11,
    "POWERED_DOWN": 1 << 12,
    "FAIL": 1 << 13,
    "POWERING_UP": 1 << 14,
    "MAINTENANCE": 1 << 15,
    "POWERING_DOWN": 1 << 18,
    "PLANNED": 1 << 21,
}
"""Bits as Slurm gives them: sinfo sorts states by this number, so it decides which line comes first."""
_BUSY = frozenset({"ALLOCATED", "MIXED"})


def flags_of(node: Record) -> frozenset[str]:
    return frozenset(node.get("flags") or ())


def long_state(node: Record) -> str:
    """sinfo's %T: lower case, `*` behind a node that does not answer."""
    flags = flags_of(node)
    silent = "*" if "NOT_RESPONDING" in flags else ""
    return _word(str(node.get("state") or "UNKNOWN"), flags) + silent


def _word(base: str, flags: frozenset[str]) -> str:
    completing = "COMPLETING" in flags
    if "MAINTENANCE" in flags and "DRAIN" not in flags and base != "DOWN":
        return "maint"
    if "DRAIN" in flags:
        return "draining" if completing or base in _BUSY else "drained"
    if "FAIL" in flags:
        return "failing" if completing or base == "ALLOCATED" else "fail"
    for flag in ("POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"):
        if flag in flags:
            return flag.lower()
    if base == "DOWN":
        return "down"
    if base == "ALLOCATED":
        return "allocated+" if completing else "allocated"
    if completing:
        return "completing"
    if base == "IDLE":
        return "planned" if "PLANNED" in flags else "reserved" if "RESERVED" in flags else "idle"
    if base == "MIXED" and "PLANNED" in flags:
        return "mixed-"
    return base.lower()


def compact_node_state(node: Record) -> str:
    """sinfo's %t."""
    word = long_state(node)
    bare = word.rstrip("*+-")
    return _COMPACT.get(bare, bare) + word[len(bare) :]


def complete_state(node: Record) -> str:
    """scontrol's State=: base and flags, `IDLE+DRAIN+PLANNED`."""
    flags = flags_of(node)
    known = [flag for flag in _SHOWN_ORDER if flag in flags]
    rest = sorted(flags.difference(_SHOWN_ORDER))
    return "+".join([str(node.get("state") or "UNKNOWN"), *known, *rest])


_SHOWN_ORDER = (
    "CLOUD", "COMPLETING", "DRAIN", "FAIL", "MAINTENANCE", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP",
    "RESERVED", "NOT_RESPONDING", "PLANNED",
)  # fmt: skip


def state_code(node: Record) -> int:
    """The number Slurm sorts states by."""
    code = _BASE_CODE.get(str(node.get("state")), 0)
    return code + sum(_FLAG_CODE.get(flag, 0) for flag in flags_of(node))


def is_busy(node: Record) -> bool:
    return node.get("state") in _BUSY or "COMPLETING" in flags_of(node)


def is_out(node: Record) -> bool:
    """Down, drained or failing: what `sinfo -R` lists."""
    return node.get("state") == "DOWN" or not flags_of(node).isdisjoint({"DRAIN", "FAIL"})


_Test = Callable[[Record], bool]


def _base(word: str) -> _Test:
    return lambda node: node.get("state") == word


def _flag(word: str) -> _Test:
    return lambda node: word in flags_of(node)


_TESTS: dict[str, _Test] = {
    "alloc": lambda node: is_busy(node) and node.get("state") != "MIXED",
    "cloud": _flag("CLOUD"),
    "comp": _flag("COMPLETING"),
    "down": _base("DOWN"),
    "drain": _flag("DRAIN"),
    "drained": lambda node: long_state(node).startswith("drained"),
    "draining": lambda node: long_state(node).startswith("draining"),
    "fail": _flag("FAIL"),
    "future": _base("FUTURE"),
    "idle": _base("IDLE"),
    "maint": _flag("MAINTENANCE"),
    "mixed": _base("MIXED"),
    "no_respond": _flag("NOT_RESPONDING"),
    "perfctrs": _flag("PERFCTRS"),
    "planned": _flag("PLANNED"),
    "power_down": _flag("POWER_DOWN"),
    "powered_down": _flag("POWERED_DOWN"),
    "powering_down": _flag("POWERING_DOWN"),
    "powering_up": _flag("POWERING_UP"),
    "reboot_issued": _flag("REBOOT_ISSUED"),
    "reboot_requested": _flag("REBOOT_REQUESTED"),
    "reserved": _flag("RESERVED"),
    "unknown": _base("UNKNOWN"),
}
_ALIASES = {
    "allocated": "alloc", "completing": "comp", "drng": "draining", "futr": "future", "mix": "mixed",
    "noresp": "no_respond", "not_responding": "no_respond", "npc": "perfctrs", "plnd": "planned",
    "resv": "reserved", "unk": "unknown", "err": "fail", "failing": "fail",
}  # fmt: skip


def parse_node_states(text: str) -> _Test:
    """`idle,mix` is either, `idle&planned` is both; `all` is every node."""
    joined = "&" in text
    tests = [_node_test(word) for word in text.split("&" if joined else ",") if word.strip()]
    if joined:
        return lambda node: all(test(node) for test in tests)
    return lambda node: any(test(node) for test in tests)


def _node_test(word: str) -> _Test:
    name = word.strip().lower()
    if name == "all":
        return lambda _: True
    test = _TESTS.get(_ALIASES.get(name, name))
    if test is None:
        raise SlurmSyntaxError(f'Bad state string: "{word}"\nvalid states: {",".join(_TESTS)}')
    return test
