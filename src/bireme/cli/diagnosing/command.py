"""bireme diagnose: reads what a job left (or any log), asks the rules, and says the cause with its evidence.

The daemon tells what it knows of a job (`asked`); outputs are read here, as the user who asks. Secrets are masked
before anything is printed. Invariant: an answer that explains nothing is an answer too (exit code 0).
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.diagnosing.asked import Asked, asked_of
from bireme.cli.diagnosing.text import text_of
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeUnavailable
from bireme.commands.paths import path_of
from bireme.commands.reports import make_stamp
from bireme.commands.voice import CommandFailure, run_command
from bireme.core.diagnosis.judging import judge, of_state
from bireme.core.diagnosis.matching import Rulebook
from bireme.core.diagnosis.model import Clue, Diagnosis, Line
from bireme.daemon.paths import default_home
from bireme.evidence import standing
from bireme.evidence.answers import ANSWERED, answer_of, with_ends
from bireme.evidence.logs import masked
from bireme.evidence.reading import STDIN, Output, Reader
from bireme.evidence.rulebook import load
from bireme.evidence.searching import Searcher
from bireme.evidence.traces import dumps_beside
from bireme.slurm.formats.visible import visible, visible_values

SITE_RULES = "/etc/bireme/rules.d"

_DESCRIPTION = """\
Why a job died: cause, evidence, what to do, who, and how sure that is. With --file it needs no cluster: any log is
read, also packed ones (gzip, bzip2, xz), folders of logs, and PyTorch's flight recorder dumps."""
_EPILOG = f"""\
Rules of your own are read from the folder of --rules; else from rules.d in BIREME_HOME; else from {SITE_RULES}."""


def main(argv: list[str]) -> int:
    return run_command("bireme diagnose", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if given.causes:
        return _list_causes(given)
    if bool(given.job) == bool(given.file or given.kernel):
        raise CommandFailure(
            "give a job or files, not both"
            if given.job
            else "which job? `sacct --state=FAILED` lists those that failed; --file LOG reads any log"
        )
    if given.stacks and not given.job:
        raise CommandFailure("--stacks looks at the processes of a running job: name one")
    case = _case_of_job(given.job, stacks=given.stacks) if given.job else _case_of_files(given.file, given.kernel)
    asks_daemon = bool(given.job) and given.rules is None and not given.stacks
    answer = (_told_by_daemon(case) if asks_daemon else None) or _told_here(case, given.rules)
    if given.json:
        print(json.dumps(answer, indent=2))
    else:
        said = text_of(visible_values(answer), make_stamp("", 0.0))
        print("\n".join([*([case.heading, ""] if case.heading else []), *said]))
    return 0


def _list_causes(given: argparse.Namespace) -> int:
    """The published list, with a site's own."""
    causes = sorted(load(_rules_folder(given.rules, "")).causes.values(), key=lambda each: each.id)
    if given.json:
        told = [
            {"cause": each.id, "title": each.title, "who": each.who, "actions": list(each.actions)} for each in causes
        ]
        print(json.dumps(told, indent=2))
        return 0
    width = max(len(each.id) for each in causes)
    print("\n".join(f"{each.id:<{width}}  {each.who:<8}  {each.title}" for each in causes))
    return 0


def _told_here(case: _Case, rules: str | None) -> dict[str, Any]:
    loaded = load(_rules_folder(rules, case.rules))
    diagnosis, problems = _diagnosed(case, loaded.book())
    return answer_of(diagnosis, [*case.problems, *loaded.problems, *problems], case.job)


def _told_by_daemon(case: _Case) -> dict[str, Any] | None:
    """For an operator who may see the answer and not the files: a process of their owner's reads them."""
    if not any(_is_forbidden(output.path) for output in case.outputs):
        return None
    with make_transport() as transport, suppress(ApiError, BiremeUnavailable):
        told: dict[str, Any] = transport.get(path_of("jobs", case.job, "diagnosis"))
        return {name: value for name, value in told.items() if name in ANSWERED}
    return None


def _is_forbidden(path: str) -> bool:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY)):
            return False
    except PermissionError:
        return True
    except OSError:
        return False


def _parser() -> Arguments:
    parser = Arguments(prog="bireme diagnose", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument(
        "job", nargs="?", default="", help="job id: 42, a task of an array 42_3; also of jobs that are over"
    )
    parser.add_argument(
        "--file", nargs="+", action="extend", default=[], metavar="LOG",
        help="read these files or folders instead; - is standard input",
    )  # fmt: skip
    parser.add_argument(
        "--kernel", nargs="+", action="extend", default=[], metavar="FILE",
        help="the kernel's log of a node (dmesg, journalctl -k): only this counts as what the kernel said",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    parser.add_argument("--rules", metavar="FOLDER", help="your own rules (*.toml)")
    parser.add_argument("--causes", action="store_true", help="list all causes that there are, and who acts on each")
    parser.add_argument(
        "--stacks", action="store_true", help="of a running job: where its Python threads stand (py-spy)"
    )
    return parser


@dataclass(slots=True)
class _Case:
    """What there is to go by."""

    heading: str = ""
    outputs: list[Output] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    owner: int | None = None
    rules: str = ""
    job: str = ""
    state: str = ""


def _case_of_files(files: Sequence[str], kernel: Sequence[str]) -> _Case:
    for path in (*files, *kernel):
        if path != STDIN:
            _look_at(path)
    if (*files, *kernel).count(STDIN) > 1:
        raise CommandFailure("standard input can be read once")
    outputs = [Output(path=path, source="file") for path in files]
    return _Case(outputs=[*outputs, *(Output(path=path, source="kernel") for path in kernel)])


def _look_at(path: str) -> None:
    """What a user named has to be there: a mistyped name is no log without errors."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise CommandFailure(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise CommandFailure(f"{path} is neither a file nor a folder; - reads standard input")


def _case_of_job(job: str, *, stacks: bool) -> _Case:
    with make_transport() as transport:
        asked = asked_of(transport, job)
    case = _Case(_heading(asked), asked.outputs, list(asked.lines), list(asked.absent), asked.owner, asked.rules,
                 asked.job, asked.state)  # fmt: skip
    if asked.start is not None:
        folders = [os.path.dirname(output.path) for output in asked.outputs]
        case.outputs += [Output(path=path) for path in dumps_beside(folders, asked.owner, asked.start)]
    if stacks:
        lines, problems = standing.lines_of(asked.job_id)
        case.lines += lines
        case.problems += problems
    return case


def _heading(asked: Asked) -> str:
    return visible(f'Job {asked.job} "{asked.name}" of {asked.user}: {asked.state}')


def _rules_folder(given: str | None, setting: str) -> Path | None:
    if given is not None:
        if not os.path.isdir(given):
            raise CommandFailure(f"--rules: {given} is no folder")
        return Path(given)
    for path in (setting, os.path.join(default_home(), "rules.d"), SITE_RULES):
        if path and os.path.isdir(path):
            return Path(path)
    return None


def _diagnosed(case: _Case, book: Rulebook) -> tuple[Diagnosis, list[str]]:
    with Searcher(book) as searcher:
        found = Reader(searcher, owner=case.owner, takes_stdin=sys.stdin is not None).read(case.outputs)
        known: list[Clue] = [masked(clue) for line in case.lines for clue in searcher.clues(line)]
    diagnosis = judge([*known, *found.clues], book.causes)
    diagnosis = of_state(with_ends(diagnosis, found.ends), case.state, book.causes)
    return diagnosis, [*found.problems, *searcher.problems]
