"""Why a service has so many replicas, in words made of the data that the decision left (`Why`).

`because` is what is told where the number stands already (`2 wanted: ...`); `sentence` says the number too.
"""

from __future__ import annotations

from collections.abc import Callable

from bireme.core.model.serving.scaling import Measure, ScalingTarget, Shift
from bireme.core.scaling.advice import Cause, Reading, Why

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def sentence(why: Why) -> str:
    """`2 replicas: 3.2 requests at once, one replica for each 2.`"""
    return f"{replicas(why.wanted)}: {because(why)}."


def because(why: Why) -> str:
    """The reason, and each figure that is missing. No sentence: it stands behind a colon, and ends without a stop."""
    troubled = [each for each in why.readings if each.trouble and why.cause is not Cause.UNSEEN]
    missing = (f"{counted(each.target)}: {each.trouble}" for each in troubled)
    return "; ".join([_CLAUSES[why.cause](why), *missing])


def replicas(count: int) -> str:
    """`1 replica`, `no replicas`."""
    if not count:
        return "no replicas"
    return f"{count} replica{'s' if count != 1 else ''}"


def counted(target: ScalingTarget) -> str:
    """What a target counts."""
    match target.measure:
        case Measure.CONCURRENCY:
            return "requests at once"
        case Measure.RATE:
            return "requests a second"
        case Measure.METRIC:
            return target.name
        case Measure.QUERY:
            return f"query {target.name}"


def shift_words(shift: Shift) -> str:
    """As it is written: `Mon-Fri 08:00`."""
    days = shift.days
    if days == tuple(range(7)):
        names = "daily"
    elif len(days) > 2 and days == tuple(range(days[0], days[-1] + 1)):
        names = f"{_DAYS[days[0]]}-{_DAYS[days[-1]]}"
    else:
        names = ",".join(_DAYS[day] for day in days)
    return f"{names} {shift.minute // 60:02}:{shift.minute % 60:02}"


def _measured(why: Why) -> str:
    """The reading that asks for most, in numbers."""
    known = [each for each in why.readings if each.stable is not None]
    if not known:
        return "nothing is measured"
    most = max(known, key=_most)
    burst = most.burst_need > most.need and why.cause is Cause.BURST
    value = most.burst if burst else most.stable
    assert value is not None
    standby = f", and {why.standby} on standby" if why.standby else ""
    return f"{value:.3g} {counted(most.target)}, one replica for each {most.target.value:g}{standby}"


def _most(reading: Reading) -> int:
    return max(reading.need, reading.burst_need)


def _left(why: Why) -> str:
    return "" if why.lasts_s is None else f" ({why.lasts_s:.0f} s to go)"


def _limit(why: Why, word: str) -> str:
    shift = why.bounds.shift
    theirs = shift is not None and (shift.replicas_min if word == "minimum" else shift.replicas_max) is not None
    whose = f"the {word} of the shift {shift_words(shift)}" if shift is not None and theirs else f"its {word}"
    return f"{whose}; {_needs(why)}"


def _needs(why: Why) -> str:
    return f"the load needs {why.needed if why.needed else 'none'}"


def _recent(why: Why) -> str:
    """Of the last replica, which has nothing to do. While it loads, nobody could have asked it anything."""
    now = "no requests now" if why.ready else "not ready yet"
    left = _left(why) if why.ready else ""
    return f"{now}; the last replica stays until there were no requests for {why.window_s:g} s{left}"


_CLAUSES: dict[Cause, Callable[[Why], str]] = {
    Cause.LOAD: _measured,
    Cause.BURST: lambda why: f"a burst: {_measured(why)}; it gets no fewer until it is over{_left(why)}",
    Cause.STEP_UP: lambda why: (
        f"{_needs(why)}; at once it gets at most {why.rate:g} times those that are ready ({why.ready})"
    ),
    Cause.STEP_DOWN: lambda why: f"{_needs(why)}; every {why.window_s:g} s it is divided by {why.rate:g} at most",
    Cause.UNSEEN: lambda why: (
        f"as before; {_needs(why)}, but it has not been watched for {why.window_s:g} s yet{_left(why)}"
    ),
    Cause.MISSING: lambda why: "as before; it never gets fewer while figures are missing",
    Cause.DELAY: lambda why: f"{_needs(why)} now, but more were needed within the last {why.window_s:g} s{_left(why)}",
    Cause.WOKEN: lambda why: "a request came, and it had no replica",
    Cause.RECENT: _recent,
    Cause.IDLE: lambda why: f"no request for {why.window_s:g} s",
    Cause.MINIMUM: lambda why: _limit(why, "minimum"),
    Cause.MAXIMUM: lambda why: _limit(why, "maximum"),
}
