"""`bireme serve --help`, made from the table of flags. Text out; printing is the command's job."""

from __future__ import annotations

from bireme.slurm.options.catalogue.help import entry
from bireme.slurm.serving.flags import AS_OPTIONS, BY_NAME, FLAGS, SECTIONS, Flag

_HEAD = """\
Usage: bireme serve [FLAGS] [SBATCH OPTIONS] SCRIPT [FLAGS] [-- ARGUMENTS]

Starts a service: a batch script that stays up. Its replicas are jobs; requests to its address go to those that are
ready. Under a name that you have already, it is an update: the new revision takes over without a failed request.

  bireme serve chat.sh --replicas 0-4 --health /health

Every flag may also stand in the script, on lines that are comments to Slurm; the command line wins:

  #!/bin/bash
  #SBATCH --gpus=1 --mem=32G
  #BIREME --replicas=0-4 --health=/health --target-concurrency=16
  exec vllm serve "$MODEL" --port "${PORT:-8000}"

A replica listens on $PORT (on all its node's addresses, or on loopback); BIREME_SERVICE, BIREME_REVISION and
BIREME_REPLICA say whose it is. Of several targets the one that asks for most replicas counts.
"""
_TAIL = """
Forms of values:
  TIME    90, 90s, 500ms, 15m, 2h, 1d
  SIZE    65536, 512K, 10M, 2G
  PROBE   /PATH, tcp or exec:'COMMAND', then any of: delay=0s period=10s timeout=1s successes=1 failures=3
          (COMMAND is a line for /bin/sh with the replica's variables: exec:'test -e ready.$BIREME_REPLICA')

Besides:
      --wait                    stay until it is ready; fail, with the reason and the last lines of
                                its log, when its replicas crash or it is given up
  -Q, --quiet                   say nothing but errors
      --parsable                print the name alone
      all of sbatch's options   what each replica gets: see `sbatch --help`

See: bireme services, bireme service show NAME, bireme explain SCRIPT
"""


def help_text() -> str:
    lines = [_HEAD.rstrip("\n")]
    for section in SECTIONS:
        lines += ["", f"{section}:"]
        for option in AS_OPTIONS:
            if option.section == section:
                lines += entry(option, told(BY_NAME[option.name]))
    return "\n".join(lines) + "\n" + _TAIL


def told(flag: Flag) -> str:
    """What it does, and what holds without it."""
    more = " May be given several times." if flag.many else ""
    return f"{flag.summary}{more}" + (f" (default: {flag.default})" if flag.default else "")


def markdown_rows() -> list[str]:
    """The rows of the tables in docs/services.md, by section: a test holds the page to them."""
    rows: list[str] = []
    for section in SECTIONS:
        rows += ["", f"**{section}**", "", "| flag | what it says |", "|---|---|"]
        rows += [
            f"| `--{flag.name} {_escaped(flag.argument)}` | {_escaped(told(flag))} |"
            for flag in FLAGS
            if flag.section == section
        ]
    return rows[1:]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
