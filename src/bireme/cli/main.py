"""The `bireme` program: finds the command by its name and runs it.

`bireme sbatch x.sh`, a launcher named `sbatch` in BIREME_HOME/bin, and a link named `sbatch` all end in
`run(name, argv)`. Only the module of the command that was asked for is imported: inside jobs these commands start
hundreds of times a minute, and `squeue --version` must answer in well under a tenth of a second.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module

from bireme.cli.thin import ANSWERED, ask, open_closed_streams

_NEAR = {
    "srun": "bireme.cli.interactive.srun",
    "salloc": "bireme.cli.interactive.salloc",
    "sattach": "bireme.cli.interactive.sattach",
    "sacctmgr": "bireme.cli.sacctmgr",
}
"""Slurm's commands that always run in the process that was started."""
SLURM_COMMANDS = (*sorted(ANSWERED), *_NEAR)

_OWN_COMMANDS = {
    "up": ("bireme.cli.lifecycle", "up"),
    "down": ("bireme.cli.taking_down.command", "down"),
    "status": ("bireme.cli.lifecycle", "status"),
    "env": ("bireme.cli.lifecycle", "env"),
    "doctor": ("bireme.cli.doctor", "main"),
    "explain": ("bireme.cli.explain", "main"),
    "logs": ("bireme.cli.logs", "main"),
    "experiment": ("bireme.cli.tracking.experiment", "main"),
    "checkpoint": ("bireme.cli.checkpoint", "main"),
    "timeline": ("bireme.cli.timeline.command", "main"),
    "top": ("bireme.cli.top.command", "main"),
    "why": ("bireme.cli.why", "main"),
    "diagnose": ("bireme.cli.diagnosing.command", "main"),
    "idle": ("bireme.cli.idle", "main"),
    "findings": ("bireme.cli.faults.findings", "main"),
    "health": ("bireme.cli.faults.health", "main"),
    "healings": ("bireme.cli.faults.healings", "main"),
    "chaos": ("bireme.cli.chaos.command", "main"),
    "report": ("bireme.cli.reporting.command", "main"),
    "serve": ("bireme.cli.serving.serve", "main"),
    "services": ("bireme.cli.serving.services", "main"),
    "service": ("bireme.cli.serving.service", "main"),
    "snapshot": ("bireme.cli.simulator.replay", "snapshot"),
    "plan": ("bireme.cli.simulator.replay", "plan"),
    "sim": ("bireme.cli.simulator.run", "main"),
    "whatif": ("bireme.cli.simulator.whatif", "main"),
    "images": ("bireme.cli.images.command", "main"),
    "node": ("bireme.cli.node", "main"),
    "bundle": ("bireme.cli.bundle", "main"),
    "store": ("bireme.cli.store", "main"),
    "web": ("bireme.cli.pages.web", "main"),
}

_DRAWN = ("doctor", "explain", "sim", "timeline", "top")
"""Commands that use colours, and make what they show of others visible by themselves."""

HELP = """\
bireme: a Slurm-grade cluster on this machine, in Slurm's language.

Begin
  bireme up                    start the cluster (this machine; or --conf slurm.conf)
  eval "$(bireme env)"         put sbatch, srun, squeue ... on your PATH
  sbatch train.sh              submit your script, unchanged

The cluster
  bireme status                is it up, what runs
  bireme web                   the same and all else on pages: prints a link that logs you in (sessions, revoke, off)
  bireme top                   GPUs with their real use, nodes and the queue, live (? shows the keys)
  bireme idle                  who holds GPUs without using them, and what the policy would do about it
  bireme findings              what is wrong with GPUs, nodes and jobs, with evidence and what to do
  bireme healings              what was done about them, and what waits for your word; fence, approve, undo
  bireme health                is this machine fit for jobs: driver, GPUs, mounts, disk, memory ... in under 5 s
  bireme chaos                 in a rehearsal: kill, freeze, cut off, overheat ... and see whether it is healed
  bireme doctor                what this machine can enforce, and what to do about the rest
  bireme images                your container images on this machine; pull, rm, prune
  bireme down                  stop it (jobs run on; --end-jobs ends them)
  bireme node                  on a node of a Slurm or Kubernetes cluster: tell the daemon what it does (node token)
  bireme store verify          is everything on disk what was written; bireme store recover goes on with what is left
  bireme snapshot FILE         save what the planner plans with; bireme plan FILE plans it again, anywhere

What if
  bireme whatif --drain leaf2  a change to this cluster, tried in the simulator: what happens to each waiting job
  bireme sim run -w TRACE      replay a history, an SWF log or a generated workload in the simulator, and report
  bireme sim compare A B -w T  policies or clusters side by side
  bireme sim serve chat.sh     a day of requests against a service's policy: waiting, replica-hours, cold starts
  bireme sim faults            training on hardware that fails with published rates: what healing and spares are worth
  bireme sim soak              play worlds in which everything goes wrong, and check the rules

A job
  bireme explain train.sh      what would be asked for, line by line; needs no cluster
  bireme why 42                why it waits and when it starts, what would be sooner; how it ended
  bireme diagnose 42           why it died: cause, evidence, what to do, who; --file LOG reads any log
  bireme timeline 42           all of it on one axis: the wait, places, steps, GPUs, faults, output (--html FILE)
  bireme report 42             how much of what it had it used, and what would have been enough; also of users and
                               accounts: --user, --account, --since, with --csv or --html FILE
  bireme logs -f 42            follow a job's output until it ends
  bireme experiment 42         its run in MLflow, W&B, TensorBoard: links, latest metrics
  bireme checkpoint            inside a job, after it has saved: that much is not lost if it is preempted

A service: a script that stays up
  bireme serve chat.sh         start it, or update it: an address, replicas as the load needs (--help: all flags)
  bireme services              all of them, how they stand, and where they are (--watch)
  bireme service show chat     replicas and why so many, revisions, crashes; also: scale stop restart rollback
                               promote logs events key
  bireme why chat              why fewer replicas are ready than wanted

Slurm's commands, here or on your PATH (each has --help)
  sbatch  srun  salloc  scancel  sattach  scontrol  sacctmgr      do something
  squeue  sinfo  sacct  sstat  seff  sprio  sshare                look at something

bireme --version, bireme help COMMAND. The state lives in BIREME_HOME (now: {home}).
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `bireme` script."""
    open_closed_streams()
    name = os.path.basename(sys.argv[0])
    words = sys.argv[1:] if argv is None else argv
    if argv is None and name in SLURM_COMMANDS:
        code = ask(name, words)
        return run(name, words) if code is None else code
    if not words or words[0] in ("-h", "--help") or words == ["help"]:
        return _print_help()
    if words[0] in ("-V", "--version", "version"):
        return _print_version()
    if words[0] == "help":
        return run(words[1], ["--help"])
    code = ask(words[0], words[1:])
    return run(words[0], words[1:]) if code is None else code


def run(name: str, argv: list[str]) -> int:
    """Runs one command in this process; returns its exit code."""
    if name in SLURM_COMMANDS:
        if argv in (["--version"], ["-V"]):
            return _print_slurm_version()
        module, function = _NEAR.get(name, f"bireme.commands.{name}"), "main"
    elif name in _OWN_COMMANDS:
        module, function = _OWN_COMMANDS[name]
    else:
        return _unknown(name)
    import gc  # late, as all below: not for --version

    from bireme.cli.near import Process
    from bireme.cli.plain_streams import plain_streams
    from bireme.commands.surroundings import surround

    surround(Process())
    with plain_streams(draws=name in _DRAWN):
        if name in ANSWERED:
            gc.disable()  # a short life that makes many small dicts and no cycles: a third faster without looking
        try:
            return int(getattr(import_module(module), function)(argv))
        except KeyboardInterrupt:  # while the command was still being imported
            return 130


def run_and_exit(name: str) -> None:
    """What the launchers come to (`thin`). Leaves at once when done: tearing down a heap of records takes time."""
    code = run(name, sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it went away
            stream.flush()
    os._exit(code)


def _print_help() -> int:
    from bireme.daemon.paths import default_home  # late: only help names the home

    print(HELP.format(home=default_home()), end="")
    return 0


def _print_version() -> int:
    from bireme import __version__  # late: most commands never say it

    print(f"bireme {__version__}")
    return 0


def _print_slurm_version() -> int:
    from bireme.slurm.version import VERSION_LINE  # late: only this

    print(VERSION_LINE)
    return 0


def _unknown(name: str) -> int:
    import difflib  # late: only for a mistyped command

    known = [*_OWN_COMMANDS, *SLURM_COMMANDS]
    close = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean: bireme {close[0]}?" if close else ""
    print(f"bireme: there is no command {name!r}.{hint}\nTry: bireme --help", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
