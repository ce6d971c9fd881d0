"""Who may ask for what when a job is submitted: every field of a JobSpec is in exactly one of these tables.

As Slurm has it: a priority that an ordinary user gives is passed over (here that is said), a nice value that raises is
refused, and so is what operators write. Called by `submission`; what may be changed later, and by whom, is decided in
`requests`. Invariant: a field that is not named here cannot be added to a job (a test compares).
"""

from __future__ import annotations

from bireme.core.model.jobs import JobSpec
from bireme.core.model.refusals import Caller, Refusal, Why

OPERATORS = frozenset({"site_factor", "admin_comment"})
"""Refused where an ordinary user gives them."""
LOWERED = frozenset({"nice"})
"""An ordinary user may lower the place in the queue by it, not raise it."""
PASSED_OVER = frozenset({"priority"})
"""Not applied where an ordinary user gives it, as in Slurm, and named among what was ignored."""
MADE_HERE = frozenset({"owner", "workload", "het_component"})
"""Never the request's own words: from the connection, the place in the request, or the cluster."""
_OTHERS = """
kind name account qos wckey partitions resources time_limit_s time_limit_given time_min_s begin_at deadline_at
dependencies kill_on_invalid_dependency array hold reservation requeue expedite_requeue kill_on_node_fail warning
work_dir submit_dir umask process_nice std_in std_out std_err open_append script environment command argv
submit_line submit_host comment mail_type mail_user container_image container_bundle container_mounts
container_workdir export get_user_env step_defaults ignored
"""
ANYBODY = frozenset(_OTHERS.split())
"""Accounts, QOS, partitions and reservations have access rules of their own."""


def within_rights(caller: Caller, spec: JobSpec) -> JobSpec:
    """What the caller may ask for of it. Raises Refusal."""
    if caller.admin:
        return spec
    if spec.nice < 0:
        hint = f"only an operator may raise a job's place in the queue: --nice={spec.nice} is below 0"
        raise Refusal(Why.INVALID_NICE, hint)
    for name, given in (("site_factor", spec.site_factor), ("admin_comment", spec.admin_comment)):
        if given:
            raise Refusal(Why.ACCESS_DENIED, f"only an operator may give {name}")
    if spec.priority is None:
        return spec
    return spec.revised(priority=None, ignored=(*spec.ignored, "priority"))


def passed_over(caller: Caller, spec: JobSpec) -> str:
    """What a submission is told about that it asked for and does not get; empty: nothing."""
    if caller.admin or spec.priority is None:
        return ""
    return "--priority is accepted but not applied: only an operator may set it; it is computed"
