"""Signal names and numbers, and `--signal=[R][B:]SIG[@seconds]`.

The names are the sixteen that Slurm knows, with Linux's numbers; any other signal is given by number. Called by
the options, scancel and the reports. Not a sender of signals. Invariant: `parse_signal(signal_name(n)) == n`.
"""

import re

from bireme.core.model.jobs import WarningSignal
from bireme.slurm.errors import SlurmSyntaxError

DEFAULT_WARNING_S = 60
MAX_WARNING_S = 65535
MAX_SIGNAL = 64

_NUMBER_OF = {
    "HUP": 1,
    "INT": 2,
    "QUIT": 3,
    "ABRT": 6,
    "KILL": 9,
    "USR1": 10,
    "USR2": 12,
    "ALRM": 14,
    "TERM": 15,
    "CONT": 18,
    "STOP": 19,
    "TSTP": 20,
    "TTIN": 21,
    "TTOU": 22,
    "URG": 23,
    "XCPU": 24,
}
_NAME_OF = {number: name for name, number in _NUMBER_OF.items()}
_REQUEST = re.compile(r"(?:([RB]{1,2}):)?([^:@]+)(?:@([0-9]*))?", re.IGNORECASE | re.ASCII)


def parse_signal(text: str) -> int:
    """`SIGUSR1`, `usr1` or `10` to 10."""
    word = text.strip().upper().removeprefix("SIG")
    if word in _NUMBER_OF:
        return _NUMBER_OF[word]
    if re.fullmatch(r"[0-9]{1,3}", word) and 1 <= int(word) <= MAX_SIGNAL:
        return int(word)
    names = ", ".join(_NUMBER_OF)
    raise SlurmSyntaxError(f"Unknown job signal: {text} (a number from 1 to {MAX_SIGNAL}, or one of {names})")


def signal_name(number: int) -> str:
    """`10` to `USR1`; the number itself where Slurm has no name for it."""
    return _NAME_OF.get(number, str(number))


def parse_warning_signal(text: str) -> WarningSignal:
    """The value of `--signal`. Without `@seconds` the warning comes 60 seconds before the end."""
    match = _REQUEST.fullmatch(text)
    if match is None:
        raise _invalid(text, "expected [R][B:]SIGNAL[@SECONDS], as in B:USR1@120")
    flags, signal_text, seconds_text = match.groups()
    try:
        number = parse_signal(signal_text)
    except SlurmSyntaxError as error:
        raise _invalid(text, str(error)) from error
    seconds = int(seconds_text) if seconds_text and len(seconds_text) < 9 else None
    if seconds_text and (seconds is None or seconds > MAX_WARNING_S):
        raise _invalid(text, f"the time must be 0 to {MAX_WARNING_S} seconds")
    flags = (flags or "").upper()
    return WarningSignal(
        number=number,
        before_end_s=DEFAULT_WARNING_S if seconds is None else seconds,
        batch_only="B" in flags,
        with_reservation="R" in flags,
    )


def format_warning_signal(warning: WarningSignal) -> str:
    """Back to the option's value: `B:USR1@120`."""
    flags = ("R" if warning.with_reservation else "") + ("B" if warning.batch_only else "")
    return f"{flags}{':' if flags else ''}{signal_name(warning.number)}@{warning.before_end_s}"


def _invalid(text: str, why: str) -> SlurmSyntaxError:
    return SlurmSyntaxError(f"Invalid --signal specification: {text} ({why})")
