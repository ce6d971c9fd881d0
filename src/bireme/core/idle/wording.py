"""What is said of idle GPUs: in the job's own output, in `scontrol show job`, by `bireme why` and `bireme idle`."""

from __future__ import annotations

from bireme.core.explain.wording import counted
from bireme.core.model.idling.policy import IdleAction, IdleFacts, IdleNotice

_COMES = {
    IdleAction.REQUEUE: "it will be requeued",
    IdleAction.MOVE: "it will be queued again in partition {to}",
    IdleAction.CANCEL: "it will be cancelled",
}
_UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def spoken(seconds: float) -> str:
    """`2 hours`, `1 hour 30 minutes`, `45 seconds`: the two largest units."""
    left, words = max(0, round(seconds)), list[str]()
    for length, name in _UNITS:
        count, left = divmod(left, length)
        if count:
            words.append(counted(count, name))
        if words and (len(words) == 2 or not left):
            break
    return " ".join(words) or "0 seconds"


def which(facts: IdleFacts) -> str:
    """`its GPU was`, `its 2 GPUs were`, `1 of its 8 GPUs was`: with the verb, for what comes after it."""
    if facts.gpus == 1:
        return "its GPU was"
    if facts.gpus_idle == facts.gpus:
        return f"its {facts.gpus} GPUs were"
    return f"{facts.gpus_idle} of its {facts.gpus} GPUs {'was' if facts.gpus_idle == 1 else 'were'}"


def found(facts: IdleFacts, until: float) -> str:
    """`its 2 GPUs were below 5% for 2 hours (policy idle.toml [train])`."""
    return (
        f"{which(facts)} below {facts.below_percent:g}% for {spoken(until - facts.since)} "
        f"(policy {facts.source} [{facts.rule}])"
    )


def comes(action: IdleAction, move_to: str) -> str:
    """What is done after the grace, as a clause; empty: nothing."""
    return _COMES.get(action, "").format(to=move_to)


def notice_text(notice: IdleNotice) -> str:
    """What the owner is told. The same whenever it is asked for: times count from when the notice was given."""
    text = found(notice.facts, notice.given_at)
    after = comes(notice.action, notice.move_to)
    one = notice.facts.gpus_idle == 1
    if notice.act_at is None or not after:
        return f"{text}: use {'it' if one else 'them'}, or end the job"
    used = "it is used" if one else "they are used"
    return f"{text}: {after} in {spoken(notice.act_at - notice.given_at)} unless {used}"
