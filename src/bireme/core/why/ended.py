"""How a job ended, in a sentence or two: for the owner who finds FAILED and wants to know what that means."""

from __future__ import annotations

_STATES = {
    "COMPLETED": "It ended by itself, with exit code 0.",
    "TIMEOUT": "It reached its time limit and was ended.",
    "OUT_OF_MEMORY": "It used more memory than it asked for, and the kernel ended a process.",
    "NODE_FAIL": "A node of it was lost while it ran.",
    "PREEMPTED": "It was ended to make room for a job of higher rank.",
    "DEADLINE": "Its deadline passed.",
    "BOOT_FAIL": "Its nodes could not be made ready.",
}
_ADVICE = {
    "TIMEOUT": "Ask for more with --time, or save checkpoints (--signal sends a warning before the limit).",
    "OUT_OF_MEMORY": "Ask for more with --mem, --mem-per-cpu or --mem-per-gpu.",
}
_SIGNALS = {1: "HUP", 2: "INT", 3: "QUIT", 6: "ABRT", 7: "BUS", 9: "KILL", 11: "SEGV", 13: "PIPE", 15: "TERM"}
_CODES = {
    126: "The shell found a command but could not run it (126).",
    127: "The shell did not find a command (127): a module not loaded, or a typing mistake?",
}
_BY_SIGNAL = 128
_FILES_NOT_OPENED = 53
"""What Slurm shows of a job whose files could not be opened."""


def ended_text(state: str, code: int, signal: int, cancelled_by: int | None = None, ever_ran: bool = True) -> str:
    """`code` and `signal` as sacct's ExitCode has them."""
    if state == "CANCELLED":
        who = "" if cancelled_by is None else f" by uid {cancelled_by}"
        return f"It was cancelled{who}" + ("." if ever_ran else " before it ran.")
    if state in _STATES:
        return " ".join(filter(None, (_STATES[state], _ADVICE.get(state, ""))))
    if signal == _FILES_NOT_OPENED:
        return "A file that it reads or writes could not be opened (0:53)."
    if signal:
        return f"Signal {_signal(signal)} ended it."
    if code in _CODES:
        return f"Its script ended with exit code {code}. {_CODES[code]}"
    if code > _BY_SIGNAL and code - _BY_SIGNAL in _SIGNALS:
        return f"Its script ended with exit code {code}: signal {_signal(code - _BY_SIGNAL)} ended a command in it."
    return f"Its script ended with exit code {code}."


def _signal(number: int) -> str:
    return f"{number} ({_SIGNALS[number]})" if number in _SIGNALS else str(number)
