"""Where a cluster lives on disk: every file below `BIREME_HOME`, named once.

Not here: what the files contain. The commands read this on every start, so it imports `os` only.
Invariant: a home belongs to one user; others can reach at most the API socket, and only when that user is root.
"""

from __future__ import annotations

import os

NO_CONF = "none"
"""`bireme up --conf none`: this machine, whatever the latest start was made with."""


def default_home() -> str:
    """BIREME_HOME, else the XDG state folder."""
    named = os.environ.get("BIREME_HOME")
    if named:
        return os.path.abspath(os.path.expanduser(named))
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification says that a relative path must be ignored.
    if not state.startswith("/"):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "bireme")


class Paths:
    """The files of one cluster."""

    __slots__ = ("home",)

    def __init__(self, home: str | None = None) -> None:
        self.home = os.path.abspath(os.path.expanduser(home)) if home else default_home()

    def under(self, *names: str) -> str:
        return os.path.join(self.home, *names)

    @property
    def run(self) -> str:
        return self.under("run")

    @property
    def socket(self) -> str:
        return self.under("run", "api.sock")

    @property
    def pid_file(self) -> str:
        return self.under("run", "daemon.pid")

    @property
    def lock_file(self) -> str:
        return self.under("run", "daemon.lock")

    @property
    def ending(self) -> str:
        """What the end of a daemon waits for (`ending.py`)."""
        return self.under("run", "ending")

    @property
    def journal(self) -> str:
        return self.under("journal.db")

    @property
    def mark(self) -> str:
        """How far the journal had come (`store/mark.py`)."""
        return self.under("journal.mark")

    @property
    def log(self) -> str:
        return self.under("log", "daemon.log")

    @property
    def conf_in_force(self) -> str:
        """Names the slurm.conf of the latest start."""
        return self.under("run", "conf")

    @property
    def engine_in_force(self) -> str:
        """Names the engine of the latest start."""
        return self.under("run", "engine")

    @property
    def metrics_in_force(self) -> str:
        """Where the latest `bireme up --metrics-port` has Prometheus read."""
        return self.under("run", "metrics")

    @property
    def settings_in_force(self) -> str:
        """The bireme.toml of the latest start."""
        return self.under("run", "settings")

    @property
    def settings(self) -> str:
        return self.under("bireme.toml")

    @property
    def agents(self) -> str:
        return self.under("agents")

    @property
    def router(self) -> str:
        """The router's own folder: its socket, table and lock."""
        return self.under("router")

    @property
    def router_log(self) -> str:
        return self.under("log", "router.log")

    @property
    def series(self) -> str:
        """What was measured, over time (`store/series`)."""
        return self.under("series.db")

    @property
    def telemetry_socket(self) -> str:
        """Where gatherers tell the daemon what they measured."""
        return self.under("run", "telemetry.sock")

    @property
    def telemetry(self) -> str:
        """The folder of the door for other machines' gatherers: its certificate, key and port."""
        return self.under("telemetry")

    @property
    def gatherer(self) -> str:
        """The folder of this machine's gatherer: its lock, and what the daemon has not confirmed."""
        return self.under("gatherer")

    @property
    def rehearsal(self) -> str:
        """The scene that a rehearsal's gatherer plays (`gather/rehearsal`)."""
        return self.under("rehearsal")

    @property
    def chaos(self) -> str:
        """Faults that `bireme chaos` has made and that last."""
        return self.under("chaos")

    @property
    def gatherer_log(self) -> str:
        return self.under("log", "gatherer.log")

    @property
    def web(self) -> str:
        """The folder of the pages: their port, and whether they were switched on."""
        return self.under("web")

    @property
    def web_log(self) -> str:
        return self.under("log", "web.log")

    @property
    def sessions(self) -> str:
        """Who is logged in to the pages (`identity/keeping.py`)."""
        return self.under("identity", "sessions")

    @property
    def bin(self) -> str:
        return self.under("bin")

    def create(self) -> None:
        """Makes the folders. A user's home is private; root's lets others pass through to the socket and to `bin`."""
        root = os.geteuid() == 0
        passage = 0o711 if root else 0o700
        for folder, mode in (
            (self.home, passage),
            (self.run, passage),
            (self.under("log"), 0o700),
            (self.agents, passage),
            (self.bin, 0o755 if root else 0o700),
        ):
            os.makedirs(folder, mode=mode, exist_ok=True)
            # makedirs obeys the umask and leaves an existing folder as it was; the mode is part of the promise.
            os.chmod(folder, mode)
