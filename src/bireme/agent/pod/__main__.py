"""`python -m bireme.agent.pod FILE`: what runs in a pod of a job: its agent, and the gangway to the daemon.

The engine writes the file (`PodSettings`, as JSON) into the pod. This process is the first of its container: it ends
when the agent does, and a SIGTERM of the kubelet is the agent's to obey, so that jobs get their grace.

Invariant: the container's exit status is the agent's; 0 means that nothing of the job is left in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from bireme.agent.birth import fork_agent
from bireme.agent.confining.container import Container
from bireme.agent.node import NodeSettings
from bireme.agent.pod.fetcher import Fetcher
from bireme.agent.pod.gangway import ADDRESS_VARIABLE, Gangway
from bireme.agent.pod.spool import Spool

log = logging.getLogger("bireme.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What an agent in a pod is told by its variables, alike for all pods of a start: what differs is in the token."""

    home: str
    host: str
    port: int
    authority: str
    token_file: str
    sample_s: float = 30.0
    hosts_file: str = ""
    spool: str = ""
    """A folder with output that the daemon wants; empty: none."""
    inbox: str = ""
    """A folder for input that the daemon has; empty: none."""

    def berth(self) -> str:
        """Which pod this is, `JOB.GENERATION.NODE`: a token begins with what it is for. Raises OSError."""
        return Path(self.token_file).read_text().partition(":")[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bireme.agent.pod",
        description="Run the agent of one job inside a Kubernetes pod. The Kubernetes engine starts this.",
    )
    parser.add_argument("file", metavar="FILE", help="the pod's settings, as JSON")
    options = parser.parse_args(arguments)
    try:
        settings = PodSettings(**json.loads(Path(options.file).read_text()))
        berth = settings.berth()
        node = berth.split(".", 2)[2]
    except (OSError, ValueError, TypeError, IndexError) as error:
        parser.error(f"cannot read the pod's settings {options.file}: {error}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    container = Container.around(os.environ, settings.hosts_file, settings.inbox)
    address = os.environ.get(ADDRESS_VARIABLE, "")
    agent = NodeSettings(
        name=node, home=settings.home, address=address, sample_s=settings.sample_s, container=container
    )
    pid, answer_fd = fork_agent(agent, None, own_log=False)
    with open(answer_fd, encoding="utf-8") as pipe:
        answer = json.loads(pipe.read() or '{"error": "the agent died while it started"}')
    if "error" in answer:
        log.error("the agent did not start: %s", answer["error"])
        return 1
    return asyncio.run(_serve(settings, berth, node, pid))


async def _serve(settings: PodSettings, berth: str, node: str, agent_pid: int) -> int:
    gangway = Gangway(
        host=settings.host,
        port=settings.port,
        authority=Path(settings.authority),
        token_file=Path(settings.token_file),
        home=Path(settings.home),
        node=node,
        berth=berth,
        address=os.environ.get(ADDRESS_VARIABLE, ""),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, os.kill, agent_pid, signal.SIGTERM)
    carrying = asyncio.create_task(gangway.run())
    spool = Spool(Path(settings.spool), gangway.dial) if settings.spool else None
    returning = asyncio.create_task(spool.run()) if spool is not None else None
    fetching = asyncio.create_task(Fetcher(Path(settings.inbox), gangway.dial).run()) if settings.inbox else None
    ended = asyncio.create_task(asyncio.to_thread(os.waitpid, agent_pid, 0))
    await asyncio.wait([carrying, ended], return_when=asyncio.FIRST_COMPLETED)
    if carrying.done() and not ended.done():  # its sockets could not be made: without them the agent is of no use
        log.error("the gangway failed", exc_info=carrying.exception())
        os.kill(agent_pid, signal.SIGTERM)
    _, status = await ended
    carrying.cancel()  # first: nobody is to ask for an agent that is gone
    if fetching is not None:
        fetching.cancel()
    if spool is not None and returning is not None:
        returning.cancel()
        await spool.finish()
    return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
