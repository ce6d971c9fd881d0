"""What people ask about findings: to dismiss one, to say that it is mended. Events or a Refusal."""

from __future__ import annotations

from bireme.core.faults.findings.shelves import FINDINGS
from bireme.core.model import events as e
from bireme.core.model.finding.findings import Finding, FindingLife
from bireme.core.model.refusals import Caller, Refusal, Why
from bireme.core.state.state import State


def found(state: State, number: int) -> Finding:
    """The one with this number; a Refusal if there is none."""
    for finding in FINDINGS.of(state).values():
        if finding.id == number:
            return finding
    raise no_finding(number)


def no_finding(number: int) -> Refusal:
    return Refusal(Why.INVALID_FINDING, f"no finding {number} stands: `bireme findings` lists those that do")


def dismiss(state: State, caller: Caller, number: int, why: str) -> list[e.Event]:
    """It stays silent until it is gone, or graver."""
    finding = _for_operators(state, caller, number)
    if finding.phase is FindingLife.DISMISSED:
        return []
    return [e.FindingDismissed(finding.trouble.key, caller.user, why, finding.trouble.place.job_id or None)]


def mended(state: State, caller: Caller, number: int, why: str) -> list[e.Event]:
    """A person says that it is over. Where it is not, its detector finds it again."""
    finding = _for_operators(state, caller, number)
    about = finding.trouble.place.job_id or None
    return [e.FindingClosed(finding.trouble.key, why or "said to be mended", caller.user, about)]


def _for_operators(state: State, caller: Caller, number: int) -> Finding:
    if not caller.admin:
        raise Refusal(Why.ACCESS_DENIED)
    return found(state, number)
