"""scontrol: shows records in full and changes them. One command, or a prompt when there is none.

`show` prints, `update` reads `Key=Value` changes, `actions` holds the verbs on jobs and on the daemon, `local` what
needs no daemon at all (`show hostnames` is in half of all batch scripts).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from bireme.commands import reports
from bireme.commands.optline import Opt, OptionLineError, options, read
from bireme.commands.scontrol import actions, local, reservations, show, update
from bireme.commands.scontrol.manual import HELP
from bireme.commands.scontrol.session import Session
from bireme.commands.surroundings import around
from bireme.slurm.version import VERSION_LINE

TABLE: list[Opt] = options(
    "-a--all -M--clusters= -d--details --federation -F--future -h--help --hide --json[=] --local -o--oneliner"
    " -Q--quiet --sibling -u--uid= --usage -v--verbose -V--version --yaml[=] --autocomplete="
)
_Verb = Callable[[Session, list[str]], int]
_ANYWHERE = frozenset(
    {
        "show",
        "completing",
        "update",
        "create",
        "delete",
        "hold",
        "uhold",
        "holdu",
        "release",
        "suspend",
        "resume",
        "top",
    }
)
"""Verbs that need nothing of the process of who asked. (What is requeued may be the job that asks.)"""


def main(argv: list[str]) -> int:
    return reports.guarded("scontrol", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    given, words = read(TABLE, argv)
    asked = dict(given)
    if "version" in asked:
        reports.say(VERSION_LINE)
        return 0
    if "help" in asked or "usage" in asked:
        return _help(Session({}), [])
    session = Session(asked)
    if not words:
        return _converse(session)
    return run(session, words)


def run(session: Session, words: list[str]) -> int:
    """One command; its verb may be shortened while it stays unambiguous."""
    verb = words[0].lower()
    known = sorted(_verbs())
    found = [verb] if verb in known else [name for name in known if name.startswith(verb)]
    if len(found) != 1:
        raise reports.CommandError(f"invalid keyword: {words[0]}")
    if found[0] not in _ANYWHERE:
        around().only_near()
    return _verbs()[found[0]](session, words[1:])


def _converse(session: Session) -> int:
    """The prompt: commands until quit, exit or the end of input. A failed one is told and the next is read."""
    around().only_near()

    code, last = 0, ""
    while not session.ended:
        try:
            line = input("scontrol: ").strip()
        except EOFError:
            reports.say()
            break
        line = last if line == "!!" else line
        if not line:
            continue
        last = line
        try:
            words = shlex.split(line)
            code = run(session, words) if words else 0
        except reports.CommandError as error:
            reports.tell(str(error))
            code = error.code
        except (ValueError, OptionLineError) as error:
            reports.tell(f"scontrol: error: {error}")
            code = 1
        around().flush()
    return code


def _verbs() -> dict[str, _Verb]:
    return {
        "show": show.show,
        "update": update.update,
        "hold": actions.hold,
        "uhold": actions.uhold,
        "holdu": actions.uhold,
        "release": actions.release,
        "requeue": actions.requeue,
        "requeuehold": actions.requeue_hold,
        "suspend": actions.suspend,
        "resume": actions.resume,
        "top": actions.top,
        "write": actions.write,
        "wait_job": actions.wait_job,
        "notify": actions.unsupported("notify", "write to the job's output instead"),
        "ping": actions.ping,
        "reconfigure": actions.reconfigure,
        "shutdown": actions.shutdown,
        "abort": actions.shutdown,
        "takeover": actions.unsupported("takeover", "there is one daemon; start it with: bireme up"),
        "token": actions.unsupported("token", "the daemon knows its callers from the socket"),
        "reboot": actions.unsupported("reboot", "nodes are rebooted by their own operator"),
        "cancel_reboot": actions.unsupported("cancel_reboot", "no node is waiting for a reboot"),
        "create": reservations.create,
        "delete": reservations.delete,
        "setdebug": actions.unsupported("setdebug", "the log level is a setting of bireme.toml"),
        "setdebugflags": actions.unsupported("setdebugflags", "the log level is a setting of bireme.toml"),
        "schedloglevel": actions.unsupported("schedloglevel", "the log level is a setting of bireme.toml"),
        "fsdampeningfactor": actions.unsupported(
            "fsdampeningfactor", "set FairShareDampeningFactor in slurm.conf and run scontrol reconfigure"
        ),
        "completing": show.completing,
        "errnumstr": local.errnumstr,
        "listpids": local.list_pids,
        "pidinfo": local.pid_info,
        "getent": local.getent,
        "version": _version,
        "help": _help,
        "all": _switch("all"),
        "cluster": lambda session, words: session.choose_cluster(words[0] if words else ""),
        "clusters": lambda session, words: session.choose_cluster(words[0] if words else ""),
        "details": _switch("details"),
        "hide": lambda session, _words: session.unset("all"),
        "oneliner": _switch("oneliner"),
        "quiet": _switch("quiet"),
        "verbose": _switch("verbose"),
        "exit": _leave,
        "quit": _leave,
    }


def _switch(name: str) -> _Verb:
    """In the prompt, an option's name is a command that sets it for what follows."""
    return lambda session, _words: session.set(name)


def _leave(session: Session, _words: list[str]) -> int:
    session.ended = True
    return 0


def _version(_session: Session, _words: list[str]) -> int:
    reports.say(VERSION_LINE)
    return 0


def _help(_session: Session, _words: list[str]) -> int:
    reports.say(HELP, end="")
    return 0
