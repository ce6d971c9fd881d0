"""`bireme node`: what a node of a Slurm or Kubernetes cluster does, gathered there and told to Bireme's daemon.

`bireme node token` makes, on the daemon's machine, the file that a node needs. Without a verb it gathers until it is
ended: one process on each node, started by systemd or a DaemonSet (`deploy/`). It changes nothing on the node.
Not here: what is gathered (`gather`), and what the daemon takes of it (`daemon/telemetry`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

import msgspec

from bireme.cli.parsing import Arguments
from bireme.commands.voice import CommandFailure, run_command
from bireme.daemon import settings
from bireme.daemon.paths import Paths
from bireme.daemon.settings import SettingsError
from bireme.daemon.telemetry.premises import NoAddressError, Premises
from bireme.daemon.telemetry.tokens import TokenError
from bireme.gather import dialling
from bireme.gather.clusters.kubelet import Kubelet
from bireme.gather.clusters.owners import ClusterOwners
from bireme.gather.gatherer import Gatherer
from bireme.gather.gpus.telling import gpus_of
from bireme.gather.living import TakenError, hold, live
from bireme.rationed_log import RationedHandler

_FOLDER = "/var/lib/bireme-node"
_PASS = "/etc/bireme/node.json"
_POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"


def main(argv: list[str]) -> int:
    return run_command("bireme node", lambda: _token(argv[1:]) if argv[:1] == ["token"] else _gather(argv))


# --- on a node ---------------------------------------------------------------------------------------------


def _gather(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme node",
        description="Measure what this node of a Slurm or Kubernetes cluster does, and tell Bireme's daemon. "
        "`bireme node token --help`: the file that it needs for that.",
    )
    parser.add_argument("--pass", dest="file", default=_PASS, metavar="FILE", help=f"what the token is in ({_PASS})")
    parser.add_argument("--name", default="", metavar="NODE", help="what the cluster calls it (its short host name)")
    parser.add_argument(
        "--folder", default=_FOLDER, metavar="DIR", help=f"where rounds wait while no daemon has them ({_FOLDER})"
    )
    parser.add_argument(
        "--shares-machine", action="store_true", help="several slurmd run on this machine: --name says which one's"
    )
    parser.add_argument(
        "--pod-resources", default=_POD_RESOURCES, metavar="SOCKET",
        help=f"on Kubernetes: where the kubelet says which pods have which GPUs ({_POD_RESOURCES})",
    )  # fmt: skip
    given = parser.parse_args(argv)
    name = given.name or os.environ.get("NODE_NAME") or socket.gethostname().partition(".")[0]
    try:
        dialling.read_pass(Path(given.file))  # what cannot be is said before anything begins
        hold(Path(given.folder))
    except dialling.PassError as error:
        raise CommandFailure(str(error)) from error
    except TakenError as error:
        raise CommandFailure(f"{given.folder}: {error}; give each its own with --folder DIR") from error
    except OSError as error:
        raise CommandFailure(
            f"{given.folder}: {error.strerror}; name a folder that can be written with --folder DIR"
        ) from error
    _log_to_standard_error()
    owners = ClusterOwners(name, shares_machine=given.shares_machine, kubelet=Kubelet(given.pod_resources))
    dial = dialling.remote(Path(given.file))
    asyncio.run(live(gpus_of(name), Path(given.folder), lambda gpus, spool: Gatherer(name, owners, gpus, spool, dial)))
    return 0


def _log_to_standard_error() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[RationedHandler(handler)], force=True)


# --- on the daemon's machine -------------------------------------------------------------------------------


def _token(argv: list[str]) -> int:
    parser = Arguments(
        prog="bireme node token",
        description="Write the file with which `bireme node` is let in: the daemon's address and certificate, and a "
        "token for these nodes. Whoever has it can tell figures of them, and do nothing else: keep it private.",
    )
    parser.add_argument("nodes", metavar="NODES", help="as Slurm writes them, n[1-8]; or '*': all of the cluster")
    parser.add_argument("--out", required=True, metavar="FILE", help="which file; it must not be there yet")
    parser.add_argument("--address", default="", metavar="HOST:PORT", help="how nodes reach the daemon")
    parser.add_argument("--home", default=None, metavar="DIR", help="the cluster's state (default: $BIREME_HOME)")
    given = parser.parse_args(argv)
    paths = Paths(given.home)
    try:
        listen = settings.load(paths.home).telemetry_listen
        if not listen:
            raise CommandFailure('nodes have nowhere to call: set telemetry.listen = "ADDRESS:PORT" in bireme.toml, '
                                 "and start the daemon again")  # fmt: skip
        if given.address:
            dialling.host_and_port(given.address)
        made = Premises.at(paths.telemetry).pass_for(given.nodes, listen, given.address)
        _write_private(given.out, msgspec.json.format(msgspec.json.encode(made)) + b"\n")
    except (SettingsError, NoAddressError, TokenError, ValueError) as error:
        raise CommandFailure(str(error)) from error
    except FileExistsError as error:
        raise CommandFailure(f"{given.out} is there already: remove it, or name another file") from error
    except OSError as error:
        raise CommandFailure(f"{error.filename or given.out}: {error.strerror}") from error
    print(f"{given.out}: bring it to the nodes {given.nodes} as {_PASS}, readable by root alone")
    return 0


def _write_private(path: str, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
