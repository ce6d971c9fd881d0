"""Who is killed, and when: SIGKILL of the daemon, of agents, of everything, again while they come back.

Each choice ends with a daemon that answers. Invariant: only processes of the cluster are killed, by process id.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.soak_real.jobs import NODES
from tests.support.cluster import Cluster

BETWEEN_S = (0.02, 0.7)
AGAIN_S = (0.0, 0.6)


@dataclass(slots=True)
class Killer:
    cluster: Cluster
    dice: random.Random
    moments: int = 0
    """How often it killed; `victims` counts processes."""
    victims: Counter[str] = field(default_factory=Counter)
    lately: list[str] = field(default_factory=list)

    def strike(self) -> None:
        """At a moment of its own choice."""
        time.sleep(self.dice.uniform(*BETWEEN_S))  # the moment itself is what varies
        choice = self.dice.choice(CHOICES)
        self.moments += 1
        self.lately.append(f"{time.time():.3f} {choice.__name__.removeprefix('_')}")
        choice(self)
        self.up()

    def up(self) -> None:
        self.cluster.up_again()

    def daemon(self) -> None:
        if self.cluster.daemon_pid() is not None:
            self.cluster.kill_daemon()
            self.victims["daemon"] += 1

    def agent(self, node: str) -> None:
        if self.cluster.agent_pid(node) is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                self.cluster.kill_agent(node)
                self.victims["agent"] += 1

    def some_agents(self) -> None:
        for node in self.dice.sample(NODES, k=self.dice.randint(1, 2)):
            self.agent(node)


def _the_daemon(killer: Killer) -> None:
    killer.daemon()


def _agents(killer: Killer) -> None:
    killer.some_agents()


def _an_agent_and_the_daemon(killer: Killer) -> None:
    killer.some_agents()
    killer.daemon()


def _the_daemon_and_then_an_agent(killer: Killer) -> None:
    killer.daemon()
    time.sleep(killer.dice.uniform(0, 0.3))
    killer.some_agents()


def _everything(killer: Killer) -> None:
    killer.daemon()
    for node in NODES:
        killer.agent(node)


def _in_quick_succession(killer: Killer) -> None:
    """Again and again before it is up; sometimes its agents, too."""
    for _ in range(killer.dice.randint(2, 4)):
        killer.daemon()
        rising = subprocess.Popen(
            [killer.cluster.python, "-m", "bireme", "up", "--quiet"],
            env=killer.cluster.env,
            cwd=killer.cluster.work,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while killer.cluster.daemon_pid() is None and rising.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(killer.dice.uniform(*AGAIN_S))
        if killer.dice.random() < 0.4:
            killer.some_agents()
        killer.daemon()
        rising.wait()


CHOICES: tuple[Callable[[Killer], None], ...] = (
    _the_daemon,
    _the_daemon,
    _agents,
    _agents,
    _an_agent_and_the_daemon,
    _the_daemon_and_then_an_agent,
    _everything,
    _in_quick_succession,
)
