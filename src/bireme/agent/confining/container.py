"""What is different for an agent inside a container: whose variables count, and which names resolve.

Used by `node` and `server`, set up by `pod`. A job is submitted with the variables of some other machine: in a
container the image's own win (its PATH, its library paths), as with Pyxis. A step that a script of the job starts has
them already, perhaps changed on purpose; only what the kubelet gave to this very container is said again.

Invariant: on a machine that is no container nothing here changes anything.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bireme.agent.confining.confinement import read_counter
from bireme.agent.messages.orders import Order, Prepare, StartStep

MARK = "BIREME_CONTAINER"
"""Set in environments that have seen a container: they are not brought from outside."""
_SCRIPT_KEYS = ("prolog", "epilog", "task_prolog", "task_epilog")
"""Of orders: where they name scripts that run around the job's own."""
_NOT_THE_IMAGES = ("HOME", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "TERM", "_")
_OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Of cgroup v2 and v1, as a container sees its own group."""
_PER_CONTAINER = ("NVIDIA_", "AMD_", "ZE_")


@dataclass(frozen=True, slots=True)
class Container:
    """`hosts_file`: empty, or a file that this agent may write and that is the container's /etc/hosts.

    `inbox`: empty, or a folder into which input is brought (`inbox`).
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    hosts_file: str = ""
    inbox: str = ""

    @classmethod
    def around(cls, environ: Mapping[str, str], hosts_file: str, inbox: str = "") -> Container:
        kept = {
            name: value
            for name, value in environ.items()
            if name not in _NOT_THE_IMAGES and not name.startswith(("BIREME_", "KUBERNETES_"))
        }
        return cls(kept, hosts_file, inbox)

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """What a process of the job gets here that was to get `env`."""
        if not self.variables:
            return env
        if MARK in env:
            own = {name: value for name, value in self.variables.items() if name.startswith(_PER_CONTAINER)}
            return {**env, **own}
        own_bin = env.get("PATH", "").partition(":")[0]
        merged = {**env, **self.variables, MARK: "1"}
        merged["PATH"] = f"{own_bin}:{self.variables.get('PATH', os.defpath)}"
        return merged

    def oom_kills(self) -> int:
        """How often the kernel has killed here for memory: the limits of a container are the kubelet's."""
        return max(read_counter(Path(file), "oom_kill") for file in _OOM_FILES) if self.variables else 0

    def unpack(self, order: Order, folder: Path) -> None:
        """Writes the scripts down that came with an order: prologs and epilogs.

        They are files of the daemon's machine; here they lie in `folder`, and the order names them there.
        """
        if not isinstance(order, Prepare | StartStep) or not order.scripts:
            return
        came, order.scripts = order.scripts, {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        there: dict[str, str] = {}
        for number, (path, text) in enumerate(sorted(came.items())):
            there[path] = str(folder / f"{number}-{os.path.basename(path)}")
            if not os.path.exists(there[path]):  # an order that comes again may find it running
                descriptor = os.open(there[path], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o700)
                with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                    file.write(text)
        for key in _SCRIPT_KEYS:
            if named := getattr(order, key, ()):
                setattr(order, key, tuple(there.get(path, path) for path in named))

    def learn_hosts(self, hosts: Mapping[str, str]) -> None:
        """The nodes of the job resolve from here on: their addresses by their names."""
        if not hosts or not self.hosts_file:
            return
        lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost", *(f"{address}\t{name}" for name, address in hosts.items())]
        with contextlib.suppress(OSError):  # names are a comfort: a job that needs none runs without
            Path(self.hosts_file).write_text("\n".join(lines) + "\n")
