"""The composition root: settings -> store -> runtime -> engine -> API, on one event loop, with the real clock.

The only place that knows all the rooms. Not here: detaching from the terminal (`__main__`), deciding anything.
Invariant: the lock is held from before the store is opened until after it is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp

import bireme
from bireme.agent.system import descriptors
from bireme.api.app import create_app
from bireme.api.cluster import Service
from bireme.api.exporting.exporter import NOBODY, Exporter
from bireme.api.problems import ProblemError
from bireme.api.serving.crowd import Limits
from bireme.api.serving.peers import Peer
from bireme.api.serving.server import Server, listen
from bireme.collector import collect_in_small_steps, nothing_collected
from bireme.commands.submitting.caller import local_utc_offset
from bireme.core.faults.detection.lemon import End
from bireme.core.model.healing.policy import HealingPolicy
from bireme.core.model.idling.policy import IdleMode, IdlePolicy
from bireme.core.model.jobs import Owner
from bireme.core.model.observations import Observation
from bireme.core.model.refusals import Caller
from bireme.daemon.configuration import Loaded, load_cluster
from bireme.daemon.ending import MOST_S, Ending
from bireme.daemon.engines import Fitting, build_engine, check_same_engine, images_policy, left_for_a_start
from bireme.daemon.experiments.gate import Gate
from bireme.daemon.experiments.keeper import RunKeeper
from bireme.daemon.experiments.policy import policy_of
from bireme.daemon.experiments.reading import RunReader
from bireme.daemon.experiments.telling import FigureTeller
from bireme.daemon.faults.detecting.checking import CheckingKeeper, unapplied
from bireme.daemon.faults.detecting.keeper import DetectingKeeper, is_news
from bireme.daemon.faults.detecting.past import ends_of
from bireme.daemon.faults.detecting.sensitivity import thresholds_of
from bireme.daemon.faults.healing.keeper import HealingKeeper
from bireme.daemon.faults.healing.policy import healing_policy
from bireme.daemon.faults.restarts.keeping import Recovery
from bireme.daemon.faults.restarts.rules_file import load_rules
from bireme.daemon.files import changed_settings
from bireme.daemon.hooks import Hook
from bireme.daemon.idle.keeper import IdleKeeper
from bireme.daemon.idle.policy_file import load_policy
from bireme.daemon.inspection import check_journal_there
from bireme.daemon.outside_probes import OutsideProbes
from bireme.daemon.paths import Paths
from bireme.daemon.pod_queue import PodQueue
from bireme.daemon.process import DaemonError, Lock, Readiness, in_words, running_pid
from bireme.daemon.publishing import Publisher
from bireme.daemon.router.numbers import router_page
from bireme.daemon.router.process import RouterPlan
from bireme.daemon.router.steward import RouterSteward
from bireme.daemon.scaling.keeper import LoadKeeper
from bireme.daemon.service_news import ServiceNews
from bireme.daemon.settings import Settings, SettingsError, as_texts, latest_engine_if_known, remember, seal_remembered
from bireme.daemon.telemetry.digesting import Run
from bireme.daemon.telemetry.naming import Naming
from bireme.daemon.telemetry.process import GathererPlan
from bireme.daemon.telemetry.rehearsing import played_gpus
from bireme.daemon.telemetry.station import Station
from bireme.daemon.web.keeper import WebKeeper
from bireme.daemon.web.plan import WebPlan
from bireme.gather.address import PortError, address_of
from bireme.gather.serving import KeptPort
from bireme.identity.keeping import SessionFile
from bireme.identity.sessions import Patience, Sessions
from bireme.ports import Admit, Engine, EngineUnavailable, HistoryQuery, JournalError, Series, Store, StoreError
from bireme.rationed_log import RationedHandler
from bireme.runtime.service import Runtime
from bireme.slurm.conf.diagnostics import ConfigurationError
from bireme.slurm.records.steps import rows_of
from bireme.store.journal import SqliteStore
from bireme.store.series.levels import Keeping
from bireme.store.series.store import SqliteSeries

log = logging.getLogger("bireme.daemon")

_DAY_S, _HOUR_S = 86_400.0, 3_600.0
_STEP_S = 10.0
"""For a step of the end that waits for nobody outside this process."""
_JOBS_S = 30.0
"""Beside KillWait: for the agents to say that their jobs have ended."""

ReadSettings = Callable[[], Settings]
"""The settings in force, read anew at every start and reconfiguration. Raises SettingsError."""


class SystemClock:
    def now(self) -> float:
        return time.time()


class Daemon:
    """One run of the daemon, from `run` to its end."""

    def __init__(self, paths: Paths, read_settings: ReadSettings, lock: Lock) -> None:
        self._paths = paths
        self._lock = lock
        self._away = False
        """The folder at the home's path is not the one that is locked, which was logged."""
        self._read_settings = read_settings
        self._settings = self._built = read_settings()
        """As they are now, and as the engine was built with."""
        self._ended = asyncio.Event()
        self._end_jobs = False
        self._exit_code = 0
        self._loaded = Loaded(None, {})
        self._steward: RouterSteward | None = None
        self._keeper: LoadKeeper | None = None
        self._station: Station | None = None
        self._metrics: KeptPort | None = None
        self._idle: IdleKeeper | None = None
        self._healing: HealingKeeper | None = None
        self._detecting: DetectingKeeper | None = None
        self._checking: CheckingKeeper | None = None
        self._runs: RunKeeper | None = None
        self._experiments: RunReader | None = None
        self._sessions = Sessions(SessionFile(paths.sessions), time.time, self._patience)
        self._web = WebKeeper(
            lambda: WebPlan.of(self._settings), paths.web, paths.socket, paths.web_log, self._sessions
        )

    async def run(self, ready: Readiness) -> int:
        """Serves until told to end; the process's exit code. Tells `ready` once the API answers."""
        check_journal_there(self._paths)
        loaded = self._take(load_cluster(self._settings))
        seal_remembered(self._paths.home)
        if changed_settings(self._paths):
            log.warning("%s was changed since the latest start", self._paths.settings)
        store = SqliteStore(self._paths.journal)
        try:
            return await self._serve(store, loaded, ready)
        finally:
            store.close()

    def _take(self, loaded: Loaded) -> Loaded:
        """The configuration in force from now on; what of it is not applied is told to whoever asks, and logged."""
        self._loaded = loaded
        for warning in loaded.warnings:
            log.warning("%s", warning)
        return loaded

    async def _serve(self, store: Store, loaded: Loaded, ready: Readiness) -> int:
        self._check_settings()  # what cannot be is refused before anything begins
        idle_policy = self._idle_policy(self._settings, loaded)
        engine = Gate(build_engine(Fitting(self._settings, Path(self._paths.home), loaded, store)))
        runtime = self._recovered(store, engine)
        figures = self._experiment_keepers(runtime, store, engine)
        check_same_engine(runtime.state, latest_engine_if_known(self._paths.home), engine.name)
        runtime.on_failure = self._failed
        app = create_app(runtime, store, self._service(runtime))
        descriptors.tell_agents()
        turns = app.state.context.turns
        server = Server(app, keep_alive_s=self._settings.keep_alive_s, limits=self._limits(), turns=turns)
        if (commands := engine.capabilities.commands) is not None:
            commands.admit = self._adopter(server)
        if (guests := engine.capabilities.guests) is not None:
            guests.queue = PodQueue(runtime)
        await runtime.start(None if self._settings.has_guest else loaded.cluster)
        figures.begin()
        self._watch_signals(runtime)
        for_everyone = os.geteuid() == 0
        await server.start(listen(self._paths.socket, for_everyone=for_everyone))
        staying = asyncio.create_task(
            server.stay_at(self._paths.socket, for_everyone=for_everyone, is_ours=self._is_at_home)
        )
        app.state.context.holders.begin()
        pruning = asyncio.create_task(self._prune(store, runtime))
        news = ServiceNews(runtime)
        news.begin()
        outside = OutsideProbes(runtime, news)
        outside.begin()
        publisher = Publisher(runtime, news)
        publisher.begin()
        self._steward = RouterSteward(runtime, news, self._router_plan, bireme.__version__)
        self._keeper = self._steward.keeper = self._load_keeper(runtime, news, self._steward)
        self._keeper.begin()
        self._steward.begin()
        await self._begin_measuring(runtime, store, app.state.context.exporter)
        recovery = await self._begin_looking(runtime, app, idle_policy)
        log.info("serving at %s, with the %s engine", self._paths.socket, engine.name)
        remember(self._paths.home, self._settings)
        ready.say(pid=os.getpid())
        await self._ended.wait()
        log.info("ending%s", ", jobs too" if self._end_jobs else "; jobs run on")
        grace_s = float(runtime.state.config.settings.kill_wait_s) + _JOBS_S if self._end_jobs else 0.0
        ending = Ending(self._paths.ending, self._paths.log, grace_s + MOST_S)
        pruning.cancel()
        staying.cancel()
        if self._metrics is not None:
            self._metrics.close()
        await ending.step("the pages", self._web.end(), _STEP_S)
        app.state.context.live.close()
        await ending.step("requests under way", server.stop(), _STEP_S)
        await ending.step("the probes of replicas", outside.close(), _STEP_S)
        await ending.step("the autoscaler", self._keeper.close(), _STEP_S)
        await self._end_looking(ending, recovery)
        await ending.step("runs of experiments", figures.close(), _STEP_S)
        publisher.close()
        if self._station is not None:
            await ending.step("what was measured", self._station.close(end=self._end_jobs), _STEP_S)
        if self._end_jobs:
            await ending.step("jobs to end", runtime.end_jobs(os.geteuid()), grace_s)
        if self._end_jobs or not runtime.state.services:
            await ending.step("the router to end", self._steward.end(), MOST_S)
        else:
            await ending.step("the router", self._steward.close(), _STEP_S)
        news.close()
        await ending.step("the engine and the journal", runtime.stop(), MOST_S)
        ending.say("threads that have not ended")
        return self._exit_code

    async def _begin_looking(self, runtime: Runtime, app: ASGIApp, idle_policy: IdlePolicy) -> Recovery:
        """At what jobs do, and at what they leave."""
        recovery = Recovery(runtime, app, lambda: float(self._settings.checkpoints_interval_s))
        recovery.begin()
        if runtime.engine.capabilities.agents is not None:
            self._checking = self._checks(runtime)
            self._checking.begin()
        self._idle = self._idle_keeper(runtime)
        await self._idle.begin(idle_policy)
        self._healing = self._healing_keeper(runtime)
        await self._healing.begin(self._healing_policy(self._settings, self._loaded))
        return recovery

    async def _end_looking(self, ending: Ending, recovery: Recovery) -> None:
        if self._idle is not None:
            await ending.step("the look at idle GPUs", self._idle.close(), _STEP_S)
        if self._detecting is not None:
            await ending.step("detectors", self._detecting.close(), _STEP_S)
        if self._checking is not None:
            await ending.step("checks of nodes", self._checking.close(), _STEP_S)
        await ending.step("the look at jobs that failed", recovery.close(), _STEP_S)
        if self._healing is not None:
            await ending.step("healing", self._healing.close(), _STEP_S)

    async def _begin_measuring(self, runtime: Runtime, store: Store, exporter: Exporter) -> None:
        """Takes in what gatherers tell, where that is wanted; shows figures to Prometheus, and pages to people."""
        if self._settings.telemetry == "on":
            self._station = self._telemetry(runtime, store)
            self._detecting = self._detectors(runtime, store, self._station)
            await self._station.begin()
        self._metrics = KeptPort(lambda: exporter.page(NOBODY), "metrics.address, or bireme up --metrics-port")
        await self._metrics.move(self._settings.metrics_address)
        await self._web.begin()

    def _recovered(self, store: Store, engine: Engine) -> Runtime:
        began = time.monotonic()
        with nothing_collected():
            runtime = Runtime(store, engine, SystemClock(), rows_of)
        collect_in_small_steps()
        log.info("read %d jobs from the journal in %.2f s", len(runtime.state.jobs), time.monotonic() - began)
        return runtime

    def _check_settings(self) -> None:
        """Raises SettingsError."""
        self._router_plan()
        WebPlan.of(self._settings)
        _check_metrics(self._settings)
        policy_of(self._settings)
        self._healing_policy(self._settings, self._loaded)

    def _router_plan(self) -> RouterPlan:
        return RouterPlan.of(self._paths, self._settings)

    def _is_rehearsal(self) -> bool:
        return self._settings.rehearsal == "on"

    def _telemetry(self, runtime: Runtime, store: Store) -> Station:
        def open_series() -> Series:
            settings = self._settings
            keeping = Keeping(
                fine_s=settings.telemetry_fine_hours * 3600.0,
                minutes_s=settings.telemetry_minutes_days * _DAY_S,
                coarse_s=settings.telemetry_coarse_days * _DAY_S,
                digests_s=settings.telemetry_digests_days * _DAY_S,
            )
            return SqliteSeries(self._paths.series, keeping)

        def plan() -> GathererPlan | None:
            if runtime.engine.capabilities.agents is None:
                return None  # its nodes are other machines
            nodes = list(runtime.state.nodes)
            machine = nodes[0] if len(nodes) == 1 else socket.gethostname()
            return GathererPlan.of(self._paths, machine, played_gpus(runtime.state) if self._is_rehearsal() else None)

        def interval_s() -> float:
            return float(self._settings.telemetry_interval_s)

        def outside() -> tuple[str, str]:
            return self._paths.telemetry, self._settings.telemetry_listen

        def node_metrics() -> str:
            return self._settings.metrics_node_address

        def past(ended_since: float) -> list[Run]:
            records, _ = store.sound_and_damaged(HistoryQuery(start=ended_since, duplicates=True))
            return [Run.of_record(record) for record in records if record.get("start_time") is not None]

        can = runtime.engine.capabilities
        naming = Naming(lambda: runtime.state, store, queue=can.queue, pods=can.pods)
        socket_path = self._paths.telemetry_socket
        return Station(runtime, open_series, interval_s, socket_path, plan, outside, naming, past, node_metrics)

    def _healing_policy(self, settings: Settings, loaded: Loaded) -> HealingPolicy:
        partitions = _partitions(loaded)
        rules = load_rules(settings, self._paths.home, partitions)
        return replace(healing_policy(settings, partitions), restarts=rules)

    def _idle_policy(self, settings: Settings, loaded: Loaded) -> IdlePolicy:
        return load_policy(settings, self._paths.home, _partitions(loaded))

    def _healing_keeper(self, runtime: Runtime) -> HealingKeeper:
        def hook(what: Callable[[], str], name: str) -> Hook:
            limit = lambda: float(self._settings.healing_hook_timeout_s)  # noqa: E731
            return Hook(what, limit, name=name, prefix="BIREME_HEALING_", tries=3)

        program = hook(lambda: self._settings.healing_hook, "healing.hook")
        address = hook(lambda: self._settings.healing_webhook, "healing.webhook")
        return HealingKeeper(runtime, (program, address))

    def _idle_keeper(self, runtime: Runtime) -> IdleKeeper:
        hook = Hook(lambda: self._settings.idle_hook, lambda: float(self._settings.idle_hook_timeout_s))
        return IdleKeeper(runtime, lambda: self._station, lambda: float(self._settings.telemetry_interval_s), hook)

    def _checks(self, runtime: Runtime) -> CheckingKeeper:
        def every_s() -> float:
            return float(self._settings.detect_health_s) if self._settings.detect_health == "on" else 0.0

        def news(seen: Observation) -> bool:
            return is_news(runtime.state, seen)

        return CheckingKeeper(runtime, every_s, news, self._paths.home, self._paths.bin)

    def _detectors(self, runtime: Runtime, store: Store, station: Station) -> DetectingKeeper:
        def past(since: float) -> list[End]:
            records, _ = store.sound_and_damaged(HistoryQuery(start=since, duplicates=True))
            return ends_of(records)

        keeper = DetectingKeeper(
            runtime,
            station.keeper.cards_seen,
            lambda: thresholds_of(self._settings),
            lambda: float(self._settings.telemetry_interval_s),
            past,
            self._tracked_runs,
            lambda: runtime.engine.capabilities.agents is not None,
        )
        station.keeper.on_heard(keeper.heard)
        keeper.begin()
        return keeper

    def _experiment_keepers(self, runtime: Runtime, store: Store, gate: Gate) -> FigureTeller:
        runs = self._runs = RunKeeper(runtime, store, policy_of(self._settings))
        self._experiments = RunReader(runs, lambda: runtime.state.config.name)
        gate.prepare = runs.prepare
        if (environments := gate.capabilities.environments) is not None:
            environments.tell_further(runs.further)
        return FigureTeller(runs, lambda: runtime.state, runtime.clock, lambda: self._station)

    def _load_keeper(self, runtime: Runtime, news: ServiceNews, steward: RouterSteward) -> LoadKeeper:
        return LoadKeeper(
            runtime, news, lambda: bool(steward.url), local_utc_offset, lambda: self._settings.services_prometheus
        )

    def _service(self, runtime: Runtime) -> Service:
        async def reconfigure(caller: Caller) -> None:
            try:
                await self._reconfigure(runtime)
            except (ConfigurationError, SettingsError) as error:
                raise ProblemError(400, f"the configuration is left as it was: {error}") from error

        return Service(
            version=bireme.__version__,
            pid=os.getpid(),
            up_since=time.time(),
            owner_uid=os.geteuid(),
            operators=frozenset(self._settings.operators),
            max_body_bytes=self._settings.max_body_bytes,
            reconfigure=reconfigure,
            shutdown=self._end,
            notices=self._notices,
            confined=lambda: self._loaded.confine,
            router_url=self._router_url,
            router_hosts=lambda: self._settings.router_hosts,
            not_for_services=lambda: [*filter(None, (urlsplit(self._settings.web_url).hostname,))],
            scaling=lambda name: self._keeper.explained(name) if self._keeper is not None else {},
            router=lambda: self._steward.summary if self._steward is not None else {},
            routes=lambda name: self._steward is None or self._steward.routes(name),
            traffic=lambda name: self._steward.traffic.told(name) if self._steward is not None else {},
            lately=lambda name: self._steward.traffic.lately(name) if self._steward is not None else {},
            telemetry=lambda: self._station,
            router_page=lambda: router_page(self._router_plan().socket),
            work=lambda: runtime.work,
            idle=lambda: self._idle.measured if self._idle is not None else {},
            experiments=self._tracked_runs,
            sessions=self._sessions,
            pages=self._web,
            rules=lambda: self._settings.site_path(self._settings.diagnosis_rules, self._paths.home, "rules.d"),
            extra_config=as_texts(self._settings),
        )

    def _patience(self) -> Patience:
        return Patience(self._settings.web_session_hours * _HOUR_S, self._settings.web_idle_hours * _HOUR_S)

    def _notices(self) -> tuple[str, ...]:
        unheard = self._metrics.problem if self._metrics is not None else ""
        mode, unmeasured = self._settings.idle_mode, ""
        if self._station is None and mode != IdleMode.OFF:
            unmeasured = f"idle.mode={mode}: telemetry.gather is off, so no idle GPU is seen and nothing is done"
        config = self._loaded.cluster
        unchecked = unapplied(config, is_here=self._checking is not None) if config is not None else ""
        late = left_for_a_start(self._built, self._settings)
        return (*self._loaded.warnings, *filter(None, (unheard, unmeasured, unchecked, self._web.problem, late)))

    def _tracked_runs(self) -> RunReader | None:
        return self._experiments if self._runs is not None and self._runs.policy.trackers.any else None

    def _router_url(self) -> str:
        listens = self._steward.url if self._steward is not None else ""
        address = self._settings.router_address
        scheme = "https" if self._settings.router_tls_certificate else "http"
        expected = "" if address.endswith(":0") else f"{scheme}://{address}"  # nobody knows which port it will be
        return self._settings.router_url.rstrip("/") or listens or expected

    def _limits(self) -> Limits:
        settings = self._settings
        return Limits(
            connections=settings.max_connections,
            connections_each=settings.max_connections_each,
            head_s=float(settings.head_timeout_s),
            body_s=float(settings.body_timeout_s),
            answer_s=float(settings.answer_timeout_s),
        )

    def _adopter(self, server: Server) -> Admit:
        """How a connection from inside a job on another machine becomes one of the API's."""

        def adopt(sock: socket.socket, owner: Owner, job_id: int) -> None:
            server.adopt(sock, Peer(owner.uid, owner.gid, 0, owner.groups, job_id))

        return adopt

    def _is_at_home(self) -> bool:
        """Whether the folder at the home's path is still this daemon's. Where another daemon has the one that is there
        now, this one ends: commands would ask now one of them, now the other."""
        if self._lock.is_in_place():
            self._away = False
            return True
        other = running_pid(self._paths.home)
        if other is not None:
            log.error("%s is another folder now, and another daemon's (pid %d): ending", self._paths.home, other)
            self._exit_code = 1
            self._ended.set()
        elif not self._away:
            log.error("%s was removed or replaced: no command reaches this daemon any more", self._paths.home)
        self._away = True
        return False

    def _end(self, end_jobs: bool = False) -> None:
        self._end_jobs = self._end_jobs or end_jobs
        self._ended.set()

    def _failed(self, error: BaseException) -> None:
        self._exit_code = 1
        self._ended.set()

    def _watch_signals(self, runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end)
        reloads: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = loop.create_task(self._reconfigure_or_log(runtime))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)

    async def _reconfigure_or_log(self, runtime: Runtime) -> None:
        try:
            await self._reconfigure(runtime)
        except (ConfigurationError, SettingsError) as error:
            log.error("the configuration is left as it was: %s", error)

    async def _reconfigure(self, runtime: Runtime) -> None:
        settings = self._read_settings()
        RouterPlan.of(self._paths, settings)  # raises, and all is left as it was
        _check_pages(settings)
        _check_metrics(settings)
        images_policy(settings, Path(self._paths.home))
        loaded = await asyncio.to_thread(load_cluster, settings)
        idle_policy = self._idle_policy(settings, loaded)
        healing = self._healing_policy(settings, loaded)
        policy = policy_of(settings)
        self._settings = settings
        self._take(loaded)
        if self._settings.has_guest and loaded.cluster is not None:
            runtime.engine.reconfigure(loaded.cluster)  # it tells of both clusters as one
        else:
            await runtime.reconfigure(loaded.cluster)
        if self._steward is not None:
            self._steward.reconsider()
        if self._station is not None:
            self._station.reconsider()
        if self._metrics is not None:
            await self._metrics.move(self._settings.metrics_address)
        await self._web.reconsider()
        if self._idle is not None:
            await self._idle.set_policy(idle_policy)
        if self._healing is not None:
            await self._healing.set_policy(healing)
        if self._runs is not None:
            self._runs.reconsider(policy)
        log.info("reconfigured from %s", runtime.state.config.source or "this machine")

    async def _prune(self, store: Store, runtime: Runtime) -> None:
        """Once a day; what of it is asked for may change with every `scontrol reconfigure`."""
        while True:
            now, events, history = time.time(), self._settings.keep_events_days, self._settings.keep_history_days
            try:
                if events:
                    dropped = await asyncio.to_thread(store.prune, now - events * _DAY_S)
                    log.info("dropped %d events older than %d days", dropped, events)
                if history:
                    kept = {*runtime.state.jobs, *runtime.state.arrays}
                    dropped = await asyncio.to_thread(store.prune_history, now - history * _DAY_S, kept)
                    log.info("dropped the records of %d jobs that ended more than %d days ago", dropped, history)
                    needed = runtime.state.blobs()
                    dropped = await asyncio.to_thread(store.prune_blobs, now - history * _DAY_S, needed)
                    log.info("dropped %d scripts and environments that nothing names since then", dropped)
            except (JournalError, StoreError) as error:  # tomorrow it may be mended
                log.warning("nothing old was dropped: %s", error)
            await asyncio.sleep(_DAY_S)


def _check_pages(settings: Settings) -> None:
    """Raises SettingsError. A start does not ask for so much: pages that cannot be served cost nothing else."""
    plan = WebPlan.of(settings)
    if plan.mode != "off":
        plan.check_certificate()


def _check_metrics(settings: Settings) -> None:
    """Raises SettingsError for addresses that nobody can listen at."""
    for key, address in (
        ("metrics.address", settings.metrics_address),
        ("metrics.node_address", settings.metrics_node_address),
    ):
        try:
            if address:
                address_of(address)
        except PortError as error:
            raise SettingsError(f"{key}: {error}") from error


def start_logging(paths: Paths, settings: Settings) -> None:
    handler = RotatingFileHandler(
        paths.log, maxBytes=settings.log_max_bytes, backupCount=settings.log_keep, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[RationedHandler(handler)], force=True)


def serve(home: str, read_settings: ReadSettings, ready: Readiness) -> int:
    """The life of the daemon's process; its exit code. What keeps it from starting is told to `ready`."""
    paths = Paths(home)
    try:
        paths.create()
        lock = Lock(paths)
    except DaemonError as error:
        ready.say(error=str(error))
        return 1
    except OSError as error:
        ready.say(error=in_words(error, paths.home))
        return 1
    try:
        code, problem = _serve_locked(paths, read_settings, ready, lock), ""
    except (SettingsError, ConfigurationError, StoreError, EngineUnavailable) as error:
        log.error("%s", error)
        code, problem = 1, str(error)
    except OSError as error:
        log.error("%s", error, exc_info=True)
        code, problem = 1, in_words(error, paths.home)
    except Exception as error:
        log.critical("the daemon failed", exc_info=True)
        code, problem = 1, f"{type(error).__name__}: {error}; see {paths.log}"
    if problem:  # else the kernel drops the lock: `bireme down` returns when there is no process any more
        lock.release()  # before anybody hears of the failure, and tries again
        ready.say(error=problem)
    return code


def _serve_locked(paths: Paths, read_settings: ReadSettings, ready: Readiness, lock: Lock) -> int:
    start_logging(paths, read_settings())
    return asyncio.run(_run(paths, read_settings, ready, lock))


async def _run(paths: Paths, read_settings: ReadSettings, ready: Readiness, lock: Lock) -> int:
    return await Daemon(paths, read_settings, lock).run(ready)


def _partitions(loaded: Loaded) -> set[str] | None:
    """Those that the configuration has; None: an engine will tell."""
    return None if loaded.cluster is None else {partition.name for partition in loaded.cluster.partitions}
