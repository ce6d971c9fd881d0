"""Which of the documented names a case of the oracle uses: the difference between compared and only applied.

Reads the cases and layouts as text. Invariant: a name counts only for the command on whose line it stands.
"""

from __future__ import annotations

import re

from tests.oracle.cases import Case, load
from tests.oracle.inventory import PROGRAMS
from tests.oracle.layouts import LAYOUTS

from bireme.slurm.options.catalogue.all_options import TABLES
from bireme.slurm.options.catalogue.table import Command

MEASURED_WITH = (22, 5)
"""The release whose run COMPATIBILITY.md tells of."""
_LONG = re.compile(r"(?<![\w-])--([a-z][\w-]*)")
_SHORT = re.compile(r"(?<![\w-])-([a-zA-Z])")
_FORMAT = re.compile(r"(squeue|sinfo)[^|\n]* -o '([^']*)'")
_NAMES = re.compile(r"(squeue|sinfo|sacct|sstat)[^|\n]* -[oO] ([\w,:-]+)")
_VERB = re.compile(r"scontrol (?:-\w )?([a-z_]+)")
_KEY = re.compile(r"(\w+)=")
_SHORT_OF_OTHERS = {
    "squeue": "A account a all r array h noheader i iterate j jobs l long n name o format O Format p partition q qos s "
    "steps S sort t states u user w nodelist",
    "sinfo": "a all d dead e exact h noheader l long N Node n nodes O Format o format p partition R list-reasons r "
    "responding s summarize T reservation t states",
    "scancel": "A account b batch f full n name p partition q qos s signal t state u user w nodelist",
    "sacct": "A accounts b brief e helpformat F flags g group j jobs k timelimit-min K timelimit-max l long n noheader "
    "o format P parsable2 p parsable S starttime s state u user X allocations",
    "sstat": "e helpformat j jobs o format",
    "sprio": "h noheader j jobs l long n norm o format u user w weights",
    "sshare": "A accounts a all l long o format P parsable2 p parsable u users",
}


def uses() -> frozenset[str]:
    found: set[str] = set()
    layouts = []
    for group in load():
        cases = [case for case in group.cases if case.applies_to(MEASURED_WITH)]
        layouts += [LAYOUTS[group.layout]] if cases else []
        for case in cases:
            for line in _lines(case):
                found |= _of_line(line)
    for layout in layouts:
        for line in (layout.settings + layout.nodes).splitlines():
            found |= {f"{_conf_kind(line)} {key}" for key in _KEY.findall(line)}
        found |= {f"gres.conf {key}" for key in ("NodeName", "Name", "Type", "File")}
        found |= {f"topology.conf {key}" for key in _KEY.findall(layout.topology)}
    return frozenset(found)


def _lines(case: Case) -> list[str]:
    """Every command line of a case; jobs of a decision and options of a template are sbatch's."""
    jobs = [f"sbatch {options}" for options in case.settings.get("jobs", ())]
    lines = f"{case.settings.get('before', '')}\n{case.run}".replace("submit ", "sbatch ").splitlines()
    return [part for line in (*lines, *jobs) for part in re.split(r"[;|&]\s|\$\(", line)]


def _of_line(line: str) -> set[str]:
    found: set[str] = set()
    for program in PROGRAMS:
        if match := re.search(rf"(?<![\w-]){program}(?![\w-])(.*)", line):
            words = _own_words(match[1])
            found |= {f"{program} options {name}" for name in _LONG.findall(words)}
            found |= {f"{program} options {_long_name(program, letter)}" for letter in _SHORT.findall(words)}
    for program, text in _FORMAT.findall(line):
        found |= {f"{program} -o %{letter}" for letter in re.findall(r"%[.\d-]*([a-zA-Z])", text)}
    for program, names in _NAMES.findall(line):
        found |= {f"{program} -{'o' if program in ('sacct', 'sstat') else 'O'} {name.partition(':')[0]}"
                  for name in names.split(",")}  # fmt: skip
    return found | {f"scontrol commands {verb}" for verb in _VERB.findall(line)}


def _own_words(text: str) -> str:
    """Up to the program that srun or --wrap runs: its options are not the command's."""
    return re.split(r"--wrap|\bbash\b|\bsrun\b|\bsleep\b", text)[0] + (" --wrap" if "--wrap" in text else "")


def _long_name(program: str, letter: str) -> str:
    if program in {command.value for command in Command}:
        option = TABLES[Command(program)].with_letter(letter)
        return option.name if option else letter
    words = _SHORT_OF_OTHERS.get(program, "").split()
    return dict(zip(words[::2], words[1::2])).get(letter, letter)


def _conf_kind(line: str) -> str:
    if line.startswith("NodeName="):
        return "slurm.conf nodes"
    return "slurm.conf partitions" if line.startswith("PartitionName=") else "slurm.conf"
