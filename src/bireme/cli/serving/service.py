"""bireme service show|scale|stop|restart|rollback|promote|canary|logs|events|key NAME: one service.

The daemon answers with records; here they become text (`pages`) or JSON as they came. Files of replicas' output are
read in this process, with the rights of who asks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from bireme.cli.parsing import Arguments, carry_out
from bireme.cli.serving import pages
from bireme.cli.serving.serve import wait_until_ready
from bireme.cli.serving.services import router_of
from bireme.cli.serving.tails import follow, tails_of
from bireme.client.transport import Transport
from bireme.commands.paths import path_of
from bireme.commands.reports import make_stamp
from bireme.commands.voice import CommandFailure, Voice, run_command
from bireme.core.model.serving.names import is_service_name
from bireme.slurm.formats.visible import visible_values

Record = dict[str, Any]
_WAIT_S = 30.0

_VERBS = """\
  show NAME              where it is, how many replicas it has and why, its revisions, what went wrong of late
  scale NAME N|auto      so many replicas, whatever the load, until its next revision; auto: as the load needs
  restart NAME           replace all replicas, as an update would
  rollback NAME [N]      give up an update or a canary; or go back to an earlier revision
  promote NAME           let the canary take over
  canary NAME N%         give the canary another part of the requests
  stop NAME              its replicas finish their requests and end; then it is gone
  logs NAME              the output of its replicas
  events NAME            what happened to it, also after it is gone
  key add NAME           make a key: who has it may send requests from elsewhere
  key list NAME          its keys: their names, limits and makers
  key revoke NAME KEY    take a key back

`bireme service VERB --help` tells more of each; `bireme serve SCRIPT` makes a service or updates it; `bireme services`
lists all of them.
"""


def main(argv: list[str]) -> int:
    return run_command("bireme service", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = _parser()
    if not argv:
        parser.print_help()
        return 0
    given = parser.parse_args(argv)
    if not is_service_name(given.service):
        raise CommandFailure(f"there is no service {given.service[:80]!r}; `bireme services` lists them")
    return carry_out(given)


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(
        prog="bireme service",
        usage="bireme service VERB NAME ...",
        description=f"Look at one service, or change it. The verbs:\n\n{_VERBS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # `prog`: else what verbs call themselves is made of the usage above.
    verbs = parser.add_subparsers(prog=parser.prog, metavar="VERB", required=True, help=argparse.SUPPRESS)

    def add(verb: str, run: Callable[[Transport, argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = verbs.add_parser(verb, description=about)
        made.add_argument("service", metavar="NAME", help="the service")
        made.set_defaults(run=run)
        return made

    show = add("show", _show, "Where it is, how many replicas it has and why, its revisions, what went wrong of late.")
    show.add_argument("--json", action="store_true", help="the whole record, as JSON")
    about = "So many replicas, whatever the load, until its next revision. With 0 it takes no requests meanwhile."
    scale = add("scale", _scale, about)
    scale.add_argument("replicas", metavar="N|auto", help="how many; `auto`: as the load needs, again")
    scale.add_argument("--wait", action="store_true", help="stay until they are ready")
    for verb, about in (
        ("restart", "Replace all replicas, as an update would, without a failed request."),
        ("promote", "Let the canary take the place of the revision that serves."),
    ):
        add(verb, _plainly(verb), about).add_argument("--wait", action="store_true", help="stay until it is ready")
    back = add("rollback", _rollback, "Give up an update or a canary; or go back to an earlier revision.")
    back.add_argument("revision", nargs="?", type=int, metavar="N", help="default: the one that served before")
    back.add_argument("--wait", action="store_true", help="stay until it is ready")
    shift = add("canary", _shift, "Give the canary another part of the requests; its replicas follow.")
    shift.add_argument("percent", metavar="N%", help="between 1%% and 99%%")
    stop = add("stop", _stop, "End it: its replicas finish their requests and end, then it is gone.")
    stop.add_argument("--wait", action="store_true", help="stay until it is gone")
    about = "The output of its replicas, each under its own heading; where it has none, of the last one that ended."
    logs = add("logs", _logs, about)
    logs.add_argument("-r", "--replica", type=int, metavar="N", help="of replica N alone, also if it has ended")
    logs.add_argument("-f", "--follow", action="store_true", help="go on, also with replicas that come")
    logs.add_argument("-n", "--lines", type=int, metavar="N", help="begin with the last N lines of each")
    logs.add_argument("--err", action="store_true", help="standard error instead of standard output")
    events = add("events", _events, "What happened to it, oldest first; also of one that is gone.")
    events.add_argument("--json", action="store_true", help="the events as they are in the journal, as JSON")
    _add_keys(verbs)
    return parser


def _add_keys(verbs: Any) -> None:
    key = verbs.add_parser(
        "key",
        usage="bireme service key add|list|revoke NAME ...",
        description="Who may send requests from elsewhere: who has a key, and sends it as `Authorization: Bearer KEY`.",
    )
    kinds = key.add_subparsers(prog=key.prog, metavar="add|list|revoke", required=True, help=argparse.SUPPRESS)
    add = kinds.add_parser("add", description="Make a key. It is shown once and not kept.")
    add.add_argument("service", metavar="NAME", help="the service")
    add.add_argument("--note", default="", help="what it is for")
    add.add_argument("--per-minute", type=_limit, metavar="N", help="so many requests a minute at most")
    add.add_argument("--at-once", type=_limit, metavar="N", help="so many requests at once at most")
    add.set_defaults(run=_add_key)
    listed = kinds.add_parser("list", description="The keys: their names, limits and makers.")
    listed.add_argument("service", metavar="NAME", help="the service")
    listed.add_argument("--json", action="store_true", help="as JSON")
    listed.set_defaults(run=_list_keys)
    revoke = kinds.add_parser("revoke", description="Take a key back: who shows it is not let in any more.")
    revoke.add_argument("service", metavar="NAME", help="the service")
    revoke.add_argument("key", metavar="KEY", help="its name, as `list` shows it")
    revoke.set_defaults(run=_revoke_key)


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text[:20]!r}: a whole number of at least 1 is meant; without it no limit")
    return int(text)


# -- looking -----------------------------------------------------------------------------------------------------------


def _show(transport: Transport, given: argparse.Namespace) -> int:
    told = transport.get(path_of("services", given.service))
    if given.json:
        print(json.dumps(told["service"], indent=2))
        return 0
    tails = tails_of(transport, told["service"])
    lines = pages.service_page(visible_values(told["service"]), told["now"], tails, router_of(transport))
    print("\n".join(lines))
    return 0


def _events(transport: Transport, given: argparse.Namespace) -> int:
    events = transport.get(path_of("services", given.service, "events"))["events"]
    if given.json:
        print(json.dumps(events, indent=2))
        return 0
    stamp = make_stamp("", events[-1]["at"] if events else 0.0)
    for event in events:
        print(pages.event_line(visible_values(event), stamp))
    return 0


def _logs(transport: Transport, given: argparse.Namespace) -> int:
    return follow(transport, given.service, given.replica, err=given.err, lines=given.lines, on=given.follow)


# -- changing ----------------------------------------------------------------------------------------------------------


def _scale(transport: Transport, given: argparse.Namespace) -> int:
    text = given.replicas
    if text != "auto" and not (text.isascii() and text.isdigit() and len(text) < 7):
        raise CommandFailure(f"{text[:40]!r} is no number of replicas: say 0, 3 or auto")
    wanted = None if text == "auto" else int(text)
    answer = transport.post(path_of("services", given.service, "scale"), {"replicas": wanted})
    if answer["service"] is None or not given.wait:
        return _told(answer, given.service)
    return _changed(transport, given, answer)


def _plainly(verb: str) -> Callable[[Transport, argparse.Namespace], int]:
    def run(transport: Transport, given: argparse.Namespace) -> int:
        return _changed(transport, given, transport.post(path_of("services", given.service, verb)))

    return run


def _rollback(transport: Transport, given: argparse.Namespace) -> int:
    path = path_of("services", given.service, "rollback")
    return _changed(transport, given, transport.post(path, {"to": given.revision}))


def _shift(transport: Transport, given: argparse.Namespace) -> int:
    digits = given.percent.removesuffix("%")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 4):
        raise CommandFailure(f"{given.percent[:40]!r} is no part of the requests: say 10%")
    answer = transport.post(path_of("services", given.service, "canary"), {"percent": int(digits)})
    return _told(answer, given.service)


def _changed(transport: Transport, given: argparse.Namespace, answer: Record) -> int:
    """What was changed; and with --wait, until the revision that it is to have now is ready."""
    _told(answer, given.service)
    for notice in answer.get("notices", ()):
        Voice("bireme service").say(notice)
    service = answer["service"]
    if not given.wait or service is None:
        return 0
    return wait_until_ready(transport, given.service, service["revision"], Voice("bireme service"))


def _stop(transport: Transport, given: argparse.Namespace) -> int:
    answer = transport.post(path_of("services", given.service, "stop"))
    _told(answer, given.service)
    transport.patience_s = max(transport.patience_s, 60.0)
    path = path_of("services", given.service, "wait")
    params: dict[str, str | float] = {"until": "gone", "timeout": _WAIT_S}
    while given.wait and answer["service"] is not None:
        sys.stdout.flush()
        answer = transport.get(path, params, timeout_s=_WAIT_S + 30)
        if answer["done"]:
            _told(answer, given.service)
    return 0


def _told(answer: Record, name: str) -> int:
    service = answer["service"]
    if service is None:
        print(f"Service {name} is gone.")
    else:
        print(f"Service {name}: {pages.standing_text(service)}, revision {service['revision']}", flush=True)
    return 0


# -- keys --------------------------------------------------------------------------------------------------------------


def _add_key(transport: Transport, given: argparse.Namespace) -> int:
    body = {"note": given.note, "requests_per_minute": given.per_minute, "max_concurrency": given.at_once}
    made = transport.post(path_of("services", given.service, "keys"), body)
    print(made["key"])
    Voice("bireme service").say(
        f"key {made['id']} of {given.service}: it is shown this once; send it as `Authorization: Bearer KEY`"
    )
    return 0


def _list_keys(transport: Transport, given: argparse.Namespace) -> int:
    keys = transport.get(path_of("services", given.service, "keys"))["keys"]
    if given.json:
        print(json.dumps(keys, indent=2))
    else:
        print("\n".join(pages.keys_table(visible_values(keys), make_stamp("", 0.0))))
    return 0


def _revoke_key(transport: Transport, given: argparse.Namespace) -> int:
    transport.post(path_of("services", given.service, "keys", given.key, "revoke"))
    print(f"Key {given.key} of {given.service} is revoked.")
    if not transport.get(path_of("services", given.service, "keys"))["keys"]:
        Voice("bireme service").say(
            f"{given.service} has no key any more: nobody is let in from other machines, and from the router's own "
            f"everybody, also through a proxy there; `bireme service key add {given.service}` closes it again"
        )
    return 0
