"""bireme up, status, env: the life of a cluster, from its user's side.

Starting the process is `daemon/process`, `bireme down` is `taking_down`; here are the options, the launchers, and what
people read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from typing import Any

from bireme.agent.census import living_agents
from bireme.cli.launchers import write_launchers
from bireme.cli.parsing import Arguments
from bireme.client.transport import ApiError, BiremeError, BiremeUnavailable, Transport
from bireme.commands.voice import CommandFailure, run_command
from bireme.core.explain.wording import counted
from bireme.daemon import process
from bireme.daemon.files import write_sealed
from bireme.daemon.interpreter import own_environment
from bireme.daemon.paths import NO_CONF, Paths
from bireme.daemon.router import process as router
from bireme.daemon.telemetry import process as gatherer
from bireme.gather.address import PortError, address_of
from bireme.slurm.hostlist import compress

_HOME_HELP = "the cluster's state (default: $BIREME_HOME, else the XDG state folder)"
_STATUS_S = 10.0
_STARTS_S, _ANSWERS_S = 30.0, 5.0
"""How long a daemon that is there may take until it serves (another `up` may have just started it), and to answer."""
_NAMED_SERVICES = 8
_NEWER = {
    "agent": "what is new is not there for its node; when its jobs have ended: bireme down; bireme up",
    "gatherer": "on this machine ended (kill), it is replaced and loses nothing; elsewhere start bireme node again",
    "router": "it goes on with services and their replicas until: bireme down --end-jobs; bireme up",
}
"""How a part of another release comes to be of the daemon's."""
_GRAVITIES = ("broken", "degraded", "note")
_ROUNDS_NAMED = 8
_AGE_IN_SECONDS = 100.0
_NOT_RUNNING = 3  # as `systemctl status` answers for a service that does not run


# --- up ----------------------------------------------------------------------------------------------------


def up(argv: list[str]) -> int:
    return run_command("bireme up", lambda: _up(argv))


def _up(argv: list[str]) -> int:
    parser = cluster_parser("up", "Start the cluster: this machine, or what a slurm.conf describes.")
    parser.add_argument(
        "--conf",
        default="",
        metavar="FILE",
        help="slurm.conf, with gres.conf and topology.conf beside it (default: SLURM_CONF, "
        "else that of the latest start; none: this machine)",
    )
    parser.add_argument(
        "--engine",
        default="",
        metavar="NAME",
        help="what runs the jobs: embedded (this machine), slurm or kubernetes (default: that of the latest start, "
        "else embedded)",
    )
    parser.add_argument(
        "--context",
        default="",
        metavar="NAME",
        help="of the kubernetes engine: the context of the kubeconfig, for this start (default: kubernetes.context)",
    )
    parser.add_argument(
        "--metrics-port",
        default="",
        metavar="PORT",
        help="where Prometheus reads /metrics, on loopback or as HOST:PORT; also after the next start "
        "(none: where metrics.address says)",
    )
    parser.add_argument("--foreground", action="store_true", help="stay in the foreground and log to the terminal")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing when all is well")
    given = parser.parse_args(argv)
    if given.conf not in ("", NO_CONF) and not os.path.isfile(given.conf):
        raise CommandFailure(f"there is no configuration file {given.conf}")
    if given.metrics_port not in ("", NO_CONF):
        _check_metrics_port(given.metrics_port)
    if given.context:
        os.environ["BIREME_KUBERNETES_CONTEXT"] = given.context  # the daemon reads its settings from there
    paths = Paths(given.home)
    _refuse_anothers(paths)
    running = process.running_pid(paths.home)
    if running:
        return _already_up(paths, running, given)
    try:
        paths.create()
        write_launchers(paths)
        _note_metrics(paths, given.metrics_port)
    except OSError as error:
        raise CommandFailure(f"cannot write to {process.in_words(error, paths.home)}") from error
    if given.foreground:
        return _serve_here(paths, given.conf, given.engine)
    try:
        pid = process.start(paths.home, given.conf, given.engine)
    except process.DaemonError as error:
        if other := process.running_pid(paths.home):  # somebody else's `up` was quicker
            return _already_up(paths, other, given)
        raise CommandFailure(str(error)) from error
    if not given.quiet:
        _tell_up(paths, pid)
    return 0


def _check_metrics_port(text: str) -> None:
    try:
        address_of(text)
    except PortError as error:
        raise CommandFailure(f"--metrics-port: {error}") from error


def _note_metrics(paths: Paths, port: str) -> None:
    """For this start and those after it, until another is said."""
    if port:
        write_sealed(paths.metrics_in_force, "" if port == NO_CONF else port)


def _refuse_anothers(paths: Paths) -> None:
    """Only its owner starts a cluster: a daemon of another user could not write there."""
    try:
        owner = os.stat(paths.home).st_uid
    except OSError:
        return  # not there yet, or not to be entered: said when it is made
    if owner != os.geteuid() != 0:
        hint = "to start one of your own: unset BIREME_HOME, or set it to a folder of yours"
        raise CommandFailure(f"the cluster at {paths.home} belongs to uid {owner}, who alone can start it", hint=hint)


def _already_up(paths: Paths, pid: int, given: argparse.Namespace) -> int:
    if given.conf or given.engine or given.metrics_port:
        other = "--conf" if given.conf else "--engine" if given.engine else "--metrics-port"
        hint = f"to start it with another {other}: bireme down"
        raise CommandFailure(f"a cluster already runs at {paths.home} (pid {pid})", hint=hint)
    write_launchers(paths)
    try:
        with Transport(paths.home, patience_s=_STARTS_S, timeout_s=_ANSWERS_S) as transport:
            transport.get("/v1/ping")
    except BiremeError as error:
        hint = f"see {paths.log} and: bireme doctor; to start it again: bireme down, then bireme up"
        raise CommandFailure(f"a daemon (pid {pid}) holds {paths.home} but does not answer", hint=hint) from error
    if not given.quiet:
        print(f"The cluster at {paths.home} is up already (pid {pid}).")
    return 0


def _serve_here(paths: Paths, conf: str, engine: str) -> int:
    """This process becomes the daemon, so that its end and its signals are the supervisor's."""
    command = [sys.executable, "-m", "bireme.daemon", "--home", paths.home, "--foreground"]
    command += process.choice_words(conf, engine)
    sys.stdout.flush()
    os.execve(sys.executable, command, own_environment())


def _tell_up(paths: Paths, pid: int) -> None:
    with Transport(paths.home, patience_s=5.0) as transport:
        try:
            about, nodes = transport.get("/v1/ping"), transport.get("/v1/nodes")["nodes"]
            services = transport.get("/v1/services")["services"]
        except BiremeError as error:
            raise CommandFailure(f"the daemon (pid {pid}) started but does not answer: {error}") from error
    print(f"Cluster {about['cluster']} is up: {machine_words(nodes)} (pid {pid}, {paths.home})")
    if kept := [each["name"] for each in services if each["state"] != "STOPPING"]:
        print(f"It keeps up {services_words(kept)}; `bireme service stop NAME` ends one.")
    if about.get("problem"):
        print(f"Problem: {about['problem']}")
    if unmeasured := (about.get("telemetry") or {}).get("problem"):
        print(f"Telemetry is not whole: {unmeasured}")
    for line in releases_words(about):
        print(f"Another release: {line}")
    for notice in about.get("notices") or ():
        print(f"Not applied: {notice}")
    if "ProctrackType=" in about.get("about", ""):
        print(f"Not applied: {about['about']}")
    if os.path.join(paths.home, "bin") not in os.environ.get("PATH", "").split(":"):
        home = "" if paths.home == Paths().home else f"--home {paths.home} "
        print('Next:  eval "$(bireme env' + (f" {home.strip()}" if home else "") + ')"   then   sbatch train.sh')


def machine_words(nodes: list[dict[str, Any]]) -> str:
    """`8 nodes, 512 CPUs, 64 GPUs (h100)`."""
    cpus = sum(node.get("cpus") or 0 for node in nodes)
    gpus: Counter[str] = Counter()
    for node in nodes:
        gpus.update(gpus_of(node.get("gres") or ""))
    words = [counted(len(nodes), "node"), counted(cpus, "CPU")]
    if gpus:
        types = ", ".join(sorted(name for name in gpus if name))
        words.append(counted(sum(gpus.values()), "GPU") + (f" ({types})" if types else ""))
    return ", ".join(words)


def gpus_of(gres: str) -> dict[str, int]:
    """GPUs by type in a node's GRES text: `gpu:h100:8(S:0-1)` is {"h100": 8}. In use, one of no type has `(null)`."""
    found: Counter[str] = Counter()
    depth, word = 0, ""
    for char in gres.replace("(null)", "") + ",":
        depth += (char == "(") - (char == ")")
        if char != "," or depth:
            word += char
            continue
        parts = word.partition("(")[0].split(":")
        if parts[0] == "gpu" and parts[-1].isdigit():
            found[parts[1] if len(parts) > 2 else ""] += int(parts[-1])
        word = ""
    return dict(found)


def services_words(names: list[str]) -> str:
    """`2 services (chat, draw)`; of many the first ones."""
    shown = ", ".join(names[:_NAMED_SERVICES]) + (", ..." if len(names) > _NAMED_SERVICES else "")
    return f"{counted(len(names), 'service')} ({shown})"


# --- status ------------------------------------------------------------------------------------------------


def status(argv: list[str]) -> int:
    return run_command("bireme status", lambda: _status(argv))


def _status(argv: list[str]) -> int:
    parser = cluster_parser("status", "Is the cluster up, how big is it, what runs.")
    parser.add_argument("--json", action="store_true", help="for programs")
    given = parser.parse_args(argv)
    paths = Paths(given.home)
    try:
        with Transport(paths.home, timeout_s=_STATUS_S) as transport:
            about = transport.get("/v1/ping", {"agents": "ask"})
            nodes = transport.get("/v1/nodes")["nodes"]
            jobs = transport.get("/v1/jobs", {"fields": "state,array_tasks"})["jobs"]
    except BiremeUnavailable:
        return _tell_down(paths, given.json)
    except ApiError as error:
        raise CommandFailure(error.message) from error
    states = Counter(job["state"] for job in jobs)
    if given.json:
        print(json.dumps({**about, "up": True, "home": paths.home, "jobs": states, "nodes": _node_states(nodes)}))
        return 0
    print(f"Cluster   {about['cluster']} ({about['engine']} engine), up {_ago(about['now'] - about['up_since'])}")
    if about.get("about"):
        print(f"Engine    {about['about']}")
    if about.get("problem"):
        print(f"Problem   {about['problem']}")
    if about.get("journal"):
        print(f"Journal   nothing changes until there is room: {about['journal']}")
    for notice in about.get("notices") or ():
        print(f"Notice    {notice}")
    print(f"Daemon    pid {about['pid']}, version {about['version']}, {paths.home}")
    for line in releases_words(about):
        print(f"Release   {line}")
    if words := _router_words(about.get("router") or {}):
        print(f"Router    {words}")
    for line in telemetry_words(about.get("telemetry")):
        print(f"Telemetry {line}")
    if words := findings_words(about.get("findings") or {}):
        print(f"Findings  {words}: see bireme findings")
    if words := healings_words(about.get("healings") or {}):
        print(f"Healings  {words}: see bireme healings")
    print(f"Machine   {machine_words(nodes)}")
    print(f"Nodes     {_counts(_node_states(nodes))}")
    if silent := about.get("silent_agents"):
        print(f"Agents    of {compress(silent)} do not answer: see bireme doctor")
    print(f"Jobs      {_counts(states) or 'none'}")
    return 0


def _router_words(about: dict[str, Any]) -> str:
    """Empty where there are no services."""
    said = [f"{about['url']}, pid {about['pid']}"] if about.get("url") else []
    if about.get("problem"):
        said.append(f"services cannot be reached: {about['problem']}; see: bireme doctor")
    if about.get("warning"):
        said.append(f"{about['warning']}; see: bireme doctor")
    return "; ".join(said)


def findings_words(counted: dict[str, int]) -> str:
    """`2 broken, 1 degraded`; empty: nothing is known to be wrong."""
    return ", ".join(f"{counted[gravity]} {gravity}" for gravity in _GRAVITIES if counted.get(gravity))


def healings_words(told: dict[str, int]) -> str:
    """`1 GPU and 2 nodes out of service, 1 waits for a person`; empty: there is nothing to say."""
    out = [
        counted(told[key], noun) for key, noun in (("fenced_gpus", "GPU"), ("fenced_nodes", "node")) if told.get(key)
    ]
    said = [f"{' and '.join(out)} out of service"] if out else []
    if asked := told.get("suggested"):
        said.append(f"{asked} wait{'' if asked > 1 else 's'} for a person")
    return ", ".join(said)


def releases_words(about: dict[str, Any]) -> list[str]:
    """What lives on of another release than the daemon's, and what ends that: `2 agents (n[1-2]) are of 0.0.9 ...`."""
    said = []
    for each in about.get("releases") or ():
        of, count = f" ({each['nodes']})" if each["nodes"] else "", each["count"]
        who = counted(count, each["part"]) + of + (" is" if count == 1 else " are")
        said.append(f"{who} of {each['release']}, the daemon of {about['version']}: {_NEWER[each['part']]}")
    return said


def telemetry_words(about: dict[str, Any] | None) -> list[str]:
    """What is not well with what is measured, and how new it is. `about`: None of a daemon that does not say."""
    if about is None:
        return []
    if not about:
        return ["off: nothing is measured (telemetry.gather)"]
    said = [f"is not whole: {about['problem']}"] if about.get("problem") else []
    return said + ([f"newest round {ages}"] if (ages := rounds_words(about)) else [])


def rounds_words(about: dict[str, Any], only_late: bool = False) -> str:
    """`of n7 9 s ago, of n2 8 s ago, of 6 more since then`; empty where nobody tells, or it is not to be known."""
    rounds = [one for one in about.get("rounds") or () if one["late"] or not only_late]
    words = [f"of {one['node']} {_age_words(one['age_s'])}" for one in rounds[:_ROUNDS_NAMED]]
    more = (len(rounds) if only_late else int(about.get("machines") or 0)) - len(words)
    if words and more:
        words.append(f"of {more} more since then")
    return ", ".join(words)


def _age_words(age_s: float | None) -> str:
    if age_s is None:
        return "before the daemon started"
    return f"{age_s:.0f} s ago" if age_s < _AGE_IN_SECONDS else f"{_ago(age_s)} ago"


def _tell_down(paths: Paths, as_json: bool) -> int:
    pid = process.running_pid(paths.home)
    if as_json:
        print('{"up": false}')
    elif pid:
        print(f"A daemon (pid {pid}) holds {paths.home} but does not answer; see {paths.log} and: bireme doctor")
    else:
        print(f"No cluster runs at {paths.home}. Start it with: bireme up")
        if left := agents_without_a_daemon(paths):
            print(f"{left}. Found again by: bireme up; ended by: bireme down --end-jobs")
        if router_pid := router.pid_of(paths.router):
            print(f"The router of its services (pid {router_pid}) goes on with the replicas that there were")
        if gatherer_pid := gatherer.pid_of(paths.gatherer):
            print(f"What its jobs do is gathered on (pid {gatherer_pid}), and kept when a daemon is back")
    return _NOT_RUNNING


def agents_without_a_daemon(paths: Paths) -> str:
    """What still runs of a cluster whose daemon is gone, in words; empty where nothing does."""
    living = living_agents(paths.home)
    if not living:
        return ""
    nodes = compress(sorted(living.values()))
    return f"Agents of {nodes} run on, with the jobs that they hold (pids {', '.join(map(str, sorted(living)))})"


def _node_states(nodes: list[dict[str, Any]]) -> Counter[str]:
    return Counter("+".join([node["state"], *(flag for flag in node.get("flags") or ())]) for node in nodes)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {state.lower()}" for state, count in sorted(counter.items()))


def _ago(seconds: float) -> str:
    whole = int(max(0, seconds))
    days, rest = divmod(whole, 86400)
    clock = time.strftime("%H:%M:%S", time.gmtime(rest))
    return f"{days}-{clock}" if days else clock


# --- env ---------------------------------------------------------------------------------------------------


def env(argv: list[str]) -> int:
    return run_command("bireme env", lambda: _env(argv))


def _env(argv: list[str]) -> int:
    parser = cluster_parser("env", 'Shell commands that put sbatch, srun, squeue ... on PATH: eval "$(bireme env)"')
    parser.add_argument("--shell", choices=("bash", "zsh", "sh", "fish", "csh"), default=None, help="default: $SHELL")
    parser.add_argument("--unset", action="store_true", help="commands that take it back")
    given = parser.parse_args(argv)
    paths = Paths(given.home)
    if not given.unset:
        _have_commands(paths)
    shell = given.shell or os.path.basename(os.environ.get("SHELL", "sh"))
    print(env_text(paths, shell, os.environ.get("PATH", ""), unset=given.unset))
    return 0


def _have_commands(paths: Paths) -> None:
    """Written anew in a home of one's own; in another's they are used as its owner's `bireme up` wrote them."""
    try:
        owner = os.stat(paths.home).st_uid
    except FileNotFoundError:
        owner = os.geteuid()
    except OSError as error:
        raise CommandFailure(f"cannot enter {paths.home}: {error.strerror}") from error
    if owner == os.geteuid():
        try:
            paths.create()
            write_launchers(paths)
        except OSError as error:
            raise CommandFailure(f"cannot write to {paths.home}: {error.strerror}") from error
    elif not os.access(os.path.join(paths.bin, "squeue"), os.X_OK):
        raise CommandFailure(
            f"the cluster at {paths.home} is uid {owner}'s and has no commands for others: its owner writes them with"
            " `bireme up`"
        )


def env_text(paths: Paths, shell: str, path: str, *, unset: bool = False) -> str:
    """What the shell is to evaluate. Evaluated twice it changes nothing more."""
    kept = [folder for folder in path.split(":") if folder and folder != paths.bin]
    folders = kept if unset else [paths.bin, *kept]
    home = None if unset else paths.home
    if shell == "fish":
        lines = ["set -gx PATH " + " ".join(map(_quoted_for_fish, folders)) + ";"]
        lines.append(f"set -gx BIREME_HOME {_quoted_for_fish(home)};" if home else "set -e BIREME_HOME;")
    elif shell in ("csh", "tcsh"):
        lines = [f"setenv PATH {_quoted(':'.join(folders))};"]
        lines.append(f"setenv BIREME_HOME {_quoted(home)};" if home else "unsetenv BIREME_HOME;")
    else:
        lines = [f"export PATH={_quoted(':'.join(folders))};"]
        lines.append(f"export BIREME_HOME={_quoted(home)};" if home else "unset BIREME_HOME;")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _quoted_for_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def cluster_parser(name: str, about: str) -> argparse.ArgumentParser:
    """Of a command about one cluster as a whole: `--home` says which."""
    parser = Arguments(prog=f"bireme {name}", description=about)
    parser.add_argument("--home", default=None, metavar="DIR", help=_HOME_HELP)
    return parser
