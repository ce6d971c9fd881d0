"""How `scontrol update` reads the value of a `Key=Value` pair, whatever it is about, and how it refuses one.

Text in, a plain value out; ValueError or SlurmSyntaxError for what cannot be read. Used for jobs and partitions.
"""

from __future__ import annotations

from bireme.commands import reports


def refused(key: str, value: str, why: str = "Update of this parameter is not supported") -> reports.CommandError:
    """The error for a pair that ends the whole request."""
    return reports.CommandError(f"{why}: {key}={value}\nRequest aborted")


def whole(value: str) -> int:
    """A decimal number; ValueError for what is none."""
    if not value.isascii() or not value.removeprefix("-").isdigit():
        raise ValueError(value)
    return int(value)


def within(value: str, least: int, most: int) -> int:
    """A decimal number of a range; ValueError outside of it."""
    number = whole(value)
    if not least <= number <= most:
        raise ValueError(value)
    return number


def listed(value: str) -> list[str]:
    return [word for word in value.split(",") if word]


def yes_no(value: str) -> bool:
    word = value.lower()
    if word not in ("yes", "no", "1", "0", "true", "false"):
        raise ValueError(f"{value} is neither yes nor no")
    return word in ("yes", "1", "true")
