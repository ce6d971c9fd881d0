"""seff: how much of what a job had it used, in the lines of Slurm's contributed script, and what it adds to them."""

from __future__ import annotations

from bireme.commands import reports
from bireme.commands.optline import Opt, options
from bireme.commands.paths import path_of
from bireme.commands.refused import ApiError, BiremeUnavailable
from bireme.slurm.formats.seff_lines import seff_lines

TABLE: list[Opt] = options("-h--help -v--version -V--version -d--debug --usage --autocomplete=")
_INVALID = "ESLURM_INVALID_JOB_ID"


def main(argv: list[str]) -> int:
    return reports.guarded("seff", lambda: _main(argv), pointer=False)


def _main(argv: list[str]) -> int:
    _, words = reports.options_of("seff", TABLE, argv)
    if len(words) != 1:
        raise reports.CommandError("Usage: seff [Options] <Jobid>\n       seff 42, seff 42_7 for a task of an array")
    try:
        told = reports.transport().get(path_of("jobs", words[0], "report"), {"plan": 0})
    except ApiError as error:
        if error.code == _INVALID:
            raise reports.CommandError("Job not found.") from None
        raise reports.failure("seff", "seff: error", error) from None
    except BiremeUnavailable as error:
        raise reports.failure("seff", "seff: error", error) from None
    for number, job in enumerate(told["jobs"]):
        reports.show([*([""] if number else []), *seff_lines(job)])
    if told["left_out"]:
        reports.tell(f"seff: {told['left_out']} earlier tasks are left out; name one: seff {words[0]}_7")
    return 0
