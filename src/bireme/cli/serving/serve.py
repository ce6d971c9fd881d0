"""bireme serve: a script, its `#BIREME` lines and flags become a service, or the next revision of one.

Reads the script's file, has `slurm/serving` understand it, sends it, and says where the service is. With --wait it
stays until the service is ready, and fails, with the reason and the last lines of the log, when it does not get there.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from bireme.cli.connection import make_transport
from bireme.cli.serving.tails import last_words
from bireme.client.transport import ApiError, BiremeUnavailable, Transport
from bireme.commands.paths import path_of
from bireme.commands.sbatch import read_named_script
from bireme.commands.submitting.caller import plain, plain_spec, submit_context
from bireme.commands.submitting.login_environment import with_login_environment
from bireme.commands.submitting.submission import post_until_known
from bireme.commands.surroundings import around
from bireme.commands.voice import CommandFailure, Voice, refused_by_daemon, run_command
from bireme.slurm.formats.visible import visible, visible_values
from bireme.slurm.options.catalogue.table import Command
from bireme.slurm.options.job import JobRequest
from bireme.slurm.options.layers import peek
from bireme.slurm.serving.building import ServiceSubmission, read_service
from bireme.slurm.serving.help import help_text
from bireme.slurm.serving.reading import read_line

NAME = "bireme serve"
_WAIT_S = 30.0


def main(argv: list[str]) -> int:
    return run_command(NAME, lambda: _main(argv))


def _main(argv: list[str]) -> int:
    if not argv or argv[:1] in (["-h"], ["--help"]) or argv[-1:] in (["-h"], ["--help"]):
        around().write(help_text())
        return 0
    line = read_line(argv)
    written = peek(Command.SBATCH, line.sbatch)
    if not line.script and "wrap" not in written:
        raise CommandFailure("name the script that is to stay up: bireme serve chat.sh (see bireme serve --help)")
    context = replace(submit_context(Command.SBATCH, line.sbatch), submit_line=" ".join(["bireme", "serve", *argv]))
    script = None if "wrap" in written else read_named_script(line.sbatch, written.get("chdir"))
    asked = read_service(line, script, context)
    voice = Voice(NAME, quiet=asked.options.flag("quiet"), verbose=asked.options.times("verbose"))
    for notice in asked.notices:
        voice.say(notice)
    with make_transport() as transport:
        made = _send(transport, asked, voice)
        for notice in made["notices"]:
            voice.say(notice)
        if not voice.quiet:
            around().write(f"{made['name']}\n" if asked.options.flag("parsable") else told(made))
            around().flush()
        return wait_until_ready(transport, made["name"], made["revision"], voice) if asked.options.flag("wait") else 0


def _send(transport: Transport, asked: ServiceSubmission, voice: Voice) -> dict[str, Any]:
    request = JobRequest(asked.spec.job, asked.environment)
    if asked.spec.job.get_user_env:
        (request,) = with_login_environment((request,), voice)
    body = {
        "spec": {**plain(asked.spec), "job": plain_spec(request.spec)},
        "script": asked.script,
        "environment": request.environment,
        "idempotency_key": around().key,
    }
    try:
        made: dict[str, Any] = post_until_known(transport, "/v1/services", body, voice)
    except (ApiError, BiremeUnavailable) as error:
        raise refused_by_daemon("the service was not made", error) from error
    return made


def told(made: dict[str, Any]) -> str:
    name, number, before = made["name"], made["revision"], made["updates"]
    update = before and before != number
    how = f"takes the place of revision {before}" if update else "is made"
    address = made["url"] or f"known when its router has started: bireme service show {name}"
    rows = [("address", address), ("see", f"bireme service show {name}")]
    if made["canary_percent"] is not None:
        how = f"has {made['canary_percent']}% of the requests, beside revision {before}"
        rows.append(("then", f"bireme service promote {name}, or: bireme service rollback {name}"))
    first = f"Service {name}: revision {number} {how}."
    return "\n".join([first, *(f"  {label:<8} {text}" for label, text in rows)]) + "\n"


def wait_until_ready(transport: Transport, name: str, revision: int, voice: Voice) -> int:
    """Waits until this revision has the replicas that it wants. Says on standard error what it waits for, whenever that
    is something else;
    fails where the revision does not get there by itself."""
    said = ""
    transport.patience_s = max(transport.patience_s, 60.0)
    while True:
        patience_s = 1.0 if sys.stderr.isatty() else _WAIT_S
        params: dict[str, str | float] = {"until": "settled", "revision": revision, "timeout": patience_s}
        answer = transport.get(path_of("services", name, "wait"), params, timeout_s=_WAIT_S + 30)
        service = answer["service"]
        if service is None:
            raise CommandFailure(f"service {name} was stopped")
        if answer["done"]:
            return _ended(transport, visible_values(service), visible(answer["failure"]), voice)
        said = _tell(voice, visible_values(service), said)


def _tell(voice: Voice, service: dict[str, Any], said: str) -> str:
    why = next((each["text"] for each in service["reasons"]), service["state"])
    text = f"{service['ready']} of {service['wanted']} ready: {why}"
    if text != said:
        voice.say(text)
    return text


def _ended(transport: Transport, service: dict[str, Any], failure: str, voice: Voice) -> int:
    if not failure:
        voice.say(f"{service['ready']} of {service['wanted']} ready")
        return 0
    voice.error(failure)
    for line in last_words(transport, service):
        voice.raw(line)
    raise CommandFailure(hint=_what_now(service))


def _what_now(service: dict[str, Any]) -> str:
    name, newest, before = service["name"], service["revisions"][-1], service["serving"]
    goes_on = next((each["ready"] for each in service["revisions"] if each["number"] == before), 0)
    serves = f"revision {before} {'goes on serving' if goes_on else 'has no replica that is ready'}"
    if newest["phase"] == "failed":
        return f"{serves}; see: bireme service show {name}"
    if before and before != newest["number"]:
        return f"{serves}; to give the new one up: bireme service rollback {name}"
    return f"it is tried again, ever less often, until you serve a better script or: bireme service stop {name}"
