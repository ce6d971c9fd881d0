"""When usage is set to zero again: PriorityUsageResetPeriod. Days begin at midnight UTC, weeks on Sunday as Slurm's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_MONTHS = {"MONTHLY": 1, "QUARTERLY": 3, "YEARLY": 12}
_PERIODS = frozenset(("DAILY", "WEEKLY", *_MONTHS))


def next_reset(period: str, after: float) -> float | None:
    """The first moment after `after` at which a period begins; None: never."""
    if period not in _PERIODS:
        return None
    moment = datetime.fromtimestamp(after, UTC)
    today = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "DAILY":
        return (today + timedelta(days=1)).timestamp()
    if period == "WEEKLY":
        since_sunday = today.isoweekday() % 7
        return (today + timedelta(days=7 - since_sunday)).timestamp()
    months = _MONTHS[period]
    begun = (today.month - 1) // months * months
    year, month = divmod(begun + months, 12)
    return today.replace(year=today.year + year, month=month + 1, day=1).timestamp()
