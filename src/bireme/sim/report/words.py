"""Numbers as people read them: `3 h 12 min`, `87.3 %`, `12.4 k`."""

from __future__ import annotations

UNITS = ((86_400.0, "d", 3600.0, "h"), (3600.0, "h", 60.0, "min"), (60.0, "min", 1.0, "s"))


def duration(seconds: float) -> str:
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    for size, word, part, part_word in UNITS:
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            smaller = int(rest // part)
            return f"{sign}{int(whole)} {word}" + (f" {smaller} {part_word}" if smaller and whole < 100 else "")
    return f"{sign}{seconds:.0f} s" if seconds >= 10 or not seconds else f"{sign}{seconds:.1f} s"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def number(value: float) -> str:
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.2f} M"
    if size >= 1e4:
        return f"{value / 1e3:.1f} k"
    if value == int(value):
        return f"{int(value):,}".replace(",", " ")
    text = f"{value:.2f}"
    return text[:-1] if text.endswith("0") else text


def measured(name: str, value: float) -> str:
    """By what the measure is called: `..._s` is a time, a share is a share."""
    if name.endswith("_s"):
        return duration(value)
    if name in ("utilisation", "stranded"):
        return percent(value)
    return number(value)
