"""bireme service show|scale|stop|restart|rollback|promote|logs|events|key NAME: one service.

The daemon answers with records; here they become text (`pages`) or JSON as they came. Files of replicas' output are
read in this process, with the rights of who asks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.serving import pages
from bireme.cli.serving.serve import wait_until_ready
from bireme.cli.serving.services import router_problem
from bireme.cli.serving.tails import follow, tails_of
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.paths import path_of
from bireme.commands.reports import make_stamp
from bireme.commands.voice import CommandFailure, Voice, refused_by_daemon, run_command
from bireme.core.model.serving.names import is_service_name
from bireme.slurm.formats.visible import visible_values

Record = dict[str, Any]
_WAIT_S = 30.0

_VERBS = """\
  show       where it is, how many replicas it has and why, its revisions, and what went wrong of late
  scale      so many replicas, whatever the load, until its next revision; `auto`: as the load needs
  stop       its replicas finish their requests and end; then it is gone
  restart    replace all replicas, as an update would
  rollback   give up an update or a canary, or go back to an earlier revision
  promote    let the canary take over
  logs       the output of its replicas
  events     what happened to it
  key        add, list, revoke: who may send requests from elsewhere
"""


def main(argv: list[str]) -> int:
    return run_command("bireme service", lambda: _main(argv))


def _main(argv: list[str]) -> int:
    given = _parser().parse_args(argv)
    if not is_service_name(given.service):
        raise CommandFailure(f"there is no service {given.service[:80]!r}; `bireme services` lists them")
    with make_transport() as transport:
        try:
            code: int = given.run(transport, given)
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon("", error) from error
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bireme service",
        usage="bireme service VERB NAME ...",
        description=f"One service. The verbs:\n\n{_VERBS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, help=argparse.SUPPRESS)

    def add(verb: str, run: Callable[[Transport, argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(verb, description=about)
        made.add_argument("service", metavar="NAME", help="the service")
        made.set_defaults(run=run)
        return made

    show = add("show", _show, "Where it is, how many replicas it has and why, its revisions, and what went wrong.")
    show.add_argument("--json", action="store_true", help="the whole record, as JSON")
    scale = add("scale", _scale, "So many replicas, whatever the load, until its next revision.")
    scale.add_argument("replicas", help="how many; or `auto`: as the load needs, again")
    for verb, about in (
        ("restart", "Replace all replicas, as an update would, without a failed request."),
        ("promote", "Let the canary take the place of the revision that serves."),
    ):
        add(verb, _plainly(verb), about).add_argument("--wait", action="store_true", help="stay until it is ready")
    back = add("rollback", _rollback, "Give up an update or a canary; or go back to an earlier revision.")
    back.add_argument("revision", nargs="?", type=int, help="its number; default: the one that served before")
    back.add_argument("--wait", action="store_true", help="stay until it is ready")
    stop = add("stop", _stop, "End it: its replicas finish their requests and end, then it is gone.")
    stop.add_argument("--wait", action="store_true", help="stay until it is gone")
    logs = add("logs", _logs, "The output of its replicas, each under its own heading.")
    logs.add_argument("-r", "--replica", type=int, help="of this one alone, also if it crashed")
    logs.add_argument("-f", "--follow", action="store_true", help="go on, also with replicas that come")
    logs.add_argument("-n", "--lines", type=int, metavar="N", help="begin with the last N lines of each")
    logs.add_argument("--err", action="store_true", help="standard error instead of standard output")
    events = add("events", _events, "What happened to it, oldest first.")
    events.add_argument("--json", action="store_true", help="the events as they are in the journal, as JSON")
    _add_keys(verbs)
    return parser


def _add_keys(verbs: Any) -> None:
    key = verbs.add_parser("key", description="Who may send requests from elsewhere: with a key in Authorization.")
    kinds = key.add_subparsers(metavar="add|list|revoke", required=True)
    add = kinds.add_parser("add", description="Make a key. It is shown once and not kept.")
    add.add_argument("service", metavar="NAME")
    add.add_argument("--note", default="", help="what it is for")
    add.add_argument("--per-minute", type=int, metavar="N", help="so many requests a minute at most")
    add.add_argument("--at-once", type=int, metavar="N", help="so many requests at once at most")
    add.set_defaults(run=_add_key)
    listed = kinds.add_parser("list", description="The keys: their names, limits and makers.")
    listed.add_argument("service", metavar="NAME")
    listed.add_argument("--json", action="store_true", help="as JSON")
    listed.set_defaults(run=_list_keys)
    revoke = kinds.add_parser("revoke", description="Take a key back.")
    revoke.add_argument("service", metavar="NAME")
    revoke.add_argument("key", help="its name, as `list` shows it")
    revoke.set_defaults(run=_revoke_key)


# -- looking -----------------------------------------------------------------------------------------------------------


def _show(transport: Transport, given: argparse.Namespace) -> int:
    told = transport.get(path_of("services", given.service))
    if given.json:
        print(json.dumps(told["service"], indent=2))
        return 0
    tails = tails_of(transport, told["service"])
    problem = router_problem(transport)
    lines = pages.service_page(visible_values(told["service"]), told["now"], tails, router_problem=problem)
    print("\n".join(lines))
    return 0


def why_service(name: str, *, as_data: bool) -> int:
    """What `bireme why NAME` says."""
    with make_transport() as transport:
        try:
            told = transport.get(path_of("services", name))
            tails = tails_of(transport, told["service"])
        except (ApiError, BiremeUnavailable) as error:
            raise refused_by_daemon("", error) from error
    if as_data:
        print(json.dumps({"reasons": told["service"]["reasons"], "service": told["service"]}, indent=2))
    else:
        print("\n".join(pages.why_lines(visible_values(told["service"]), told["now"], tails)))
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
    return _told(transport.post(path_of("services", given.service, "scale"), {"replicas": wanted}), given.service)


def _plainly(verb: str) -> Callable[[Transport, argparse.Namespace], int]:
    def run(transport: Transport, given: argparse.Namespace) -> int:
        _told(transport.post(path_of("services", given.service, verb)), given.service)
        return wait_until_ready(transport, given.service, Voice("bireme service")) if given.wait else 0

    return run


def _rollback(transport: Transport, given: argparse.Namespace) -> int:
    _told(transport.post(path_of("services", given.service, "rollback"), {"to": given.revision}), given.service)
    if not given.wait:
        return 0
    return wait_until_ready(transport, given.service, Voice("bireme service"), gave_up=True)


def _stop(transport: Transport, given: argparse.Namespace) -> int:
    _told(transport.post(path_of("services", given.service, "stop")), given.service)
    transport.patience_s = max(transport.patience_s, 60.0)
    while given.wait:
        path = path_of("services", given.service, "wait")
        params: dict[str, str | float] = {"until": "gone", "timeout": _WAIT_S}
        if transport.get(path, params, timeout_s=_WAIT_S + 30)["done"]:
            break
    return 0


def _told(answer: Record, name: str) -> int:
    service = answer["service"]
    if service is None:
        print(f"Service {name} is gone.")
    else:
        print(f"Service {name}: {pages.standing_text(service)}, revision {service['revision']}")
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
    return 0
