"""Which engine runs the jobs: one small function for each kind, chosen by the setting `cluster.engine`.

The only module that names an engine. An engine is imported when it is chosen and not before: the client library that it
needs is an extra, and `bireme up` on a laptop must not wait for it. Not here: reading the cluster's description
(`configuration`), driving the engine (`runtime`).
Invariant: what cannot be imported is told with the words that install it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bireme.core.state.state import State
from bireme.daemon.configuration import Loaded
from bireme.daemon.settings import Settings, SettingsError, as_texts, describe
from bireme.images.messages import Policy
from bireme.images.policy import policy_from
from bireme.ports import Blobs, Engine


@dataclass(frozen=True, slots=True)
class Fitting:
    """What an engine may be built from."""

    settings: Settings
    home: Path
    loaded: Loaded
    blobs: Blobs


def build_engine(fitting: Fitting) -> Engine:
    """Raises SettingsError when the engine cannot be had here. Connects to nothing: that is `Engine.start`."""
    kind = fitting.settings.host_engine
    if kind not in _KINDS:
        raise SettingsError(f"this version of Bireme has no {kind} engine; it has: {', '.join(_KINDS)}")
    try:
        host = _KINDS[kind](fitting)
        return _with_guest(host, fitting) if fitting.settings.has_guest else host
    except ModuleNotFoundError as error:
        missing = error.name
        raise SettingsError(f"the {kind} engine needs the Python package {missing}: pip install {missing}") from error


def images_policy(settings: Settings, home: Path) -> Policy:
    """Raises SettingsError."""
    try:
        return policy_from(as_texts(settings), str(home))
    except ValueError as error:
        raise SettingsError(str(error)) from error


def left_for_a_start(built: Settings, now: Settings) -> str:
    """Which settings an engine that was built is not told of any more, though they have changed; empty: none."""
    changed = [
        row.key
        for row in describe()
        if row.key.startswith(("containers.", "images.")) and getattr(built, row.name) != getattr(now, row.name)
    ]
    if not changed:
        return ""
    return f"{', '.join(changed)}: changed, which counts from the next start (bireme down, bireme up)"


def _embedded(fitting: Fitting) -> Engine:
    from bireme.engines.crew.boxes import ContainerDefaults  # late, as every engine: see above
    from bireme.engines.embedded.engine import EmbeddedEngine

    cluster = fitting.loaded.cluster
    assert cluster is not None, "slurm.conf or this machine always describes the embedded cluster"
    settings, images = fitting.settings, images_policy(fitting.settings, fitting.home)
    containers = ContainerDefaults(
        mount_home=settings.containers_mount_home == "on",
        remap_root=settings.containers_remap_root == "on",
        entrypoint=settings.containers_entrypoint == "on",
        writable=settings.containers_writable == "on",
    )
    confine = fitting.loaded.confine
    return EmbeddedEngine(fitting.home, cluster, fitting.blobs, confine=confine, containers=containers, images=images)


def _slurm(fitting: Fitting) -> Engine:
    from bireme.engines.slurm.commands import SlurmCommands  # late, as every engine: see above
    from bireme.engines.slurm.engine import SlurmEngine
    from bireme.engines.slurm.mirror import Pace
    from bireme.engines.slurm.rest import RestSource

    settings = fitting.settings
    conf = settings.slurm_conf if settings.has_guest else settings.slurm_conf or settings.conf
    commands = SlurmCommands(conf, settings.slurm_commands, hidden=str(fitting.home / "bin"))
    pace = Pace(jobs_s=float(settings.slurm_poll_s), history_days=float(settings.slurm_history_days))
    source = RestSource(commands, settings.slurm_rest, settings.slurm_token_file) if settings.slurm_rest else None
    return SlurmEngine(commands, fitting.blobs, source=source, pace=pace)


def _kubernetes(fitting: Fitting) -> Engine:
    from bireme.daemon.kubernetes import engine_settings, pod_rules  # late, as every engine: see above
    from bireme.engines.kubernetes.engine import KubernetesEngine

    rules = fitting.loaded.rules
    settings = engine_settings(fitting.settings)
    return KubernetesEngine(fitting.home, rules, fitting.blobs, settings, pod_rules(fitting.settings, rules))


def _with_guest(host: Engine, fitting: Fitting) -> Engine:
    from bireme.engines.routing import RoutingEngine  # late, as every engine: see above

    return RoutingEngine(host, fitting.loaded.cluster, _slurm(fitting))


_KINDS: dict[str, Callable[[Fitting], Engine]] = {"embedded": _embedded, "slurm": _slurm, "kubernetes": _kubernetes}


def check_same_engine(state: State, before: str, engine: str) -> None:
    """Jobs that another engine runs are not this one's to find or to end: they must be over before it takes the home.

    `before`: the engine of the latest start; empty when this is the first.
    """
    left = len(state.pending) + len(state.holding)
    if before and before != engine and left:
        raise SettingsError(
            f"{left} jobs of the {before} engine have not ended here: end them first "
            f"(bireme up --engine {before}; scancel), or give the {engine} engine a home of its own (--home DIR)"
        )
