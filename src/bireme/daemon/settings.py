"""What Slurm has no word for: every setting of Bireme, with its default and its description, in one table.

Read from `bireme.toml` (in BIREME_HOME, else beside slurm.conf), then from the environment, which wins. What Slurm has
a word for is in slurm.conf. `python -m bireme.daemon.settings` prints docs/settings.md; a test compares the two.
Invariant: a setting that is not a field of `Settings` does not exist, and a field without description does not import.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from bireme.daemon.files import DamagedFileError, file_text, read_sealed, write_sealed
from bireme.daemon.paths import NO_CONF, Paths

FILE_NAME = "bireme.toml"


class SettingsError(Exception):
    """A setting is unknown or has an impossible value. The text names the place and what is allowed."""


def address_in(setting: str, text: str, example: str) -> tuple[str, int]:
    """`127.0.0.1:8600`, `[::1]:8600`, as host and port. Raises SettingsError."""
    host, _, port = text.rpartition(":")
    try:
        address, number = str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError:
        address, number = "", -1
    if not 0 <= number <= 65535:
        raise SettingsError(f"{setting}: {text!r} is no IP address with a port, as {example} is")
    return address, number


def setting(default: Any, key: str, description: str, choices: tuple[str, ...] = ()) -> Any:
    if not description.endswith("."):
        raise TypeError(f"setting {key} needs a description: one or more sentences")
    metadata = {"key": key, "description": description, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    conf: str = setting(
        "",
        "cluster.conf",
        "The slurm.conf that describes the cluster; gres.conf and topology.conf are looked for beside it. "
        "`bireme up --conf` and SLURM_CONF win over this; when none of them says anything, the one of the latest start "
        "counts again (`bireme up --conf none` forgets it). Empty: the cluster is this machine.",
    )
    cluster_name: str = setting(
        "bireme", "cluster.name", "Name of the cluster when no slurm.conf gives one (ClusterName)."
    )
    engine: str = setting(
        "embedded",
        "cluster.engine",
        "What runs the jobs: `embedded` is this machine; `slurm` a Slurm cluster that exists already; `kubernetes` a "
        "Kubernetes cluster. `bireme up --engine` wins over this; when nothing says it, that of the latest start "
        "counts again. `embedded+slurm` and `kubernetes+slurm` are two in one: partitions of the Slurm cluster are "
        "Slurm's, the others are planned here.",
        ("embedded", "slurm", "kubernetes", "embedded+slurm", "kubernetes+slurm"),
    )
    slurm_commands: str = setting(
        "",
        "slurm.commands",
        "With the slurm engine: the folder of Slurm's own commands. Empty: they are looked for on PATH. Which cluster "
        "they reach is said by `cluster.conf`, or by `slurm.conf`.",
    )
    slurm_conf: str = setting(
        "",
        "slurm.conf",
        "With a slurm engine beside another: the slurm.conf of the Slurm cluster, since `cluster.conf` describes the "
        "other. Empty: Slurm's own default.",
    )
    slurm_rest: str = setting(
        "",
        "slurm.rest",
        "With the slurm engine: read jobs and nodes from this slurmrestd (`http://HOST:6820` or "
        "`unix:/run/slurmrestd.sock`) instead of with the commands.",
    )
    slurm_token_file: str = setting(
        "", "slurm.token_file", "The file with the token for slurmrestd, as `scontrol token` prints it."
    )
    slurm_poll_s: int = setting(
        5, "slurm.poll_s", "With the slurm engine: seconds between two looks at Slurm's queue while nothing is asked."
    )
    slurm_history_days: int = setting(
        7,
        "slurm.history_days",
        "With the slurm engine: how far back ended jobs are asked of Slurm's accounting database at a start.",
    )
    gpus: str = setting(
        "auto",
        "cluster.gpus",
        "Whether GPUs of this machine are looked for when no slurm.conf describes it.",
        ("auto", "off"),
    )
    rehearsal: str = setting(
        "off",
        "cluster.rehearsal",
        "With the embedded engine: whether GPUs and kernel lines of its nodes are played, so that `bireme chaos` can "
        "break them (docs/chaos.md). Nothing of this machine's own GPUs is measured then. Counts from the next start.",
        ("off", "on"),
    )
    operators: tuple[str, ...] = setting(
        (),
        "access.operators",
        "Users who may change everybody's jobs and the nodes, besides root and the owner of the daemon.",
    )
    cgroups: str = setting(
        "auto",
        "isolation.cgroups",
        "Confinement of memory, CPUs and devices with cgroups: `auto` uses them where they can be written.",
        ("auto", "off"),
    )
    containers_mount_home: str = setting(
        "off",
        "containers.mount_home",
        "Whether containers of jobs that do not say (`--container-mount-home`) have their user's home folder.",
        ("on", "off"),
    )
    containers_remap_root: str = setting(
        "on",
        "containers.remap_root",
        "Whether users look like root in containers of jobs that do not say (`--container-remap-root`).",
        ("on", "off"),
    )
    containers_entrypoint: str = setting(
        "off",
        "containers.entrypoint",
        "Whether an image's entry point is run for jobs that do not say (`--container-entrypoint`).",
        ("on", "off"),
    )
    containers_writable: str = setting(
        "on",
        "containers.writable",
        "Whether the images of jobs that do not say (`--container-writable`) can be written to, in memory.",
        ("on", "off"),
    )
    images_cache: str = setting(
        "",
        "images.cache",
        "The folder below which every user has one with their container images, on a disk of the machine's own "
        "(docs/containers.md). Empty: `images` in BIREME_HOME.",
    )
    images_most_gib: int = setting(
        200,
        "images.most_gib",
        "How much a user's images may take there, in GiB; what was used longest ago makes way, never what runs.",
    )
    images_largest_gib: int = setting(100, "images.largest_gib", "An image that unpacks to more GiB is refused.")
    images_fresh_s: int = setting(
        10, "images.fresh_s", "A tag that was looked up in its registry so many seconds ago is not looked up again."
    )
    images_idle_s: int = setting(30, "images.idle_s", "A registry that says nothing for so many seconds is given up.")
    images_downloads: int = setting(4, "images.downloads", "How many layers of an image are pulled at once.")
    images_mirrors: tuple[str, ...] = setting(
        (),
        "images.mirrors",
        "Mirrors that are asked before a registry, in this order, each `registry=host:port`, as "
        "`docker.io=mirror.example.org:5000`.",
    )
    images_insecure: tuple[str, ...] = setting(
        (),
        "images.insecure",
        'Registries and mirrors, as `["mirror.example.org:5000"]`, that are spoken to without TLS.',
    )
    kubernetes_config: str = setting(
        "",
        "kubernetes.config",
        "The kubeconfig of the cluster. Empty: inside a cluster its own, else what kubectl uses (KUBECONFIG, "
        "~/.kube/config).",
    )
    kubernetes_context: str = setting(
        "", "kubernetes.context", "The context of the kubeconfig. Empty: its current one. `bireme up --context` wins."
    )
    kubernetes_namespace: str = setting(
        "default", "kubernetes.namespace", "The namespace of jobs whose account has none of its own."
    )
    kubernetes_account_namespaces: tuple[str, ...] = setting(
        (), "kubernetes.account_namespaces", "Namespaces of accounts, each written `account=namespace`."
    )
    kubernetes_image: str = setting(
        "bireme",
        "kubernetes.image",
        "Bireme's own container image, which brings agent and commands into the pods of jobs "
        "(deploy/kubernetes/Containerfile makes it).",
    )
    kubernetes_job_images: tuple[str, ...] = setting(
        (),
        "kubernetes.job_images",
        "The image of jobs that name none (`--container-image`): `image`, or `partition=image` for those of one "
        "partition. None: Bireme's own.",
    )
    kubernetes_pull_policy: str = setting(
        "IfNotPresent",
        "kubernetes.pull_policy",
        "When kubelets pull images.",
        ("IfNotPresent", "Always", "Never"),
    )
    kubernetes_gateway: str = setting(
        "",
        "kubernetes.gateway",
        "The address, `host` or `host:port`, at which pods reach this daemon. Empty: this machine's address towards "
        "the API server, and a port that the kernel chooses.",
    )
    kubernetes_http_gateway: str = setting(
        "",
        "kubernetes.http_gateway",
        "The Gateway (Gateway API) through which services are reached, as `namespace/name`: each gets an HTTPRoute. "
        "Empty: the only Gateway that the cluster has, if it has one.",
    )
    kubernetes_volumes: tuple[str, ...] = setting(
        (),
        "kubernetes.volumes",
        "Volumes that jobs see: `pvc:CLAIM:/path`, `host:/folder:/path` or `nfs:SERVER:/export:/path`; `:ro` at the "
        "end: nothing may be written there. After `partition=NAME:` or `account=NAME:` only jobs of these.",
    )
    kubernetes_partitions: tuple[str, ...] = setting(
        (),
        "kubernetes.partitions",
        "Partitions by node labels when no slurm.conf names them: `name:label=value,label=value`; the first is the "
        "default. None: one partition with all nodes.",
    )
    kubernetes_topology: tuple[str, ...] = setting(
        (),
        "kubernetes.topology",
        "Node labels that name switches, from the leaf upwards. None: those of NVIDIA, AWS and Google, else the zone.",
    )
    kubernetes_tolerations: tuple[str, ...] = setting(
        (), "kubernetes.tolerations", "Taints, by key, that jobs tolerate."
    )
    kubernetes_priority_classes: tuple[str, ...] = setting(
        ("bireme-jobs",),
        "kubernetes.priority_classes",
        "The PriorityClass of jobs' pods, which keeps kube-scheduler from evicting them for lower ones: `class`, or "
        "`qos=class` for jobs of one QOS. `bireme-jobs` is made when it is missing and that is allowed. None: the "
        "cluster's default.",
    )
    kubernetes_start_timeout_s: int = setting(
        300,
        "kubernetes.start_timeout_s",
        "How long the pods of a job may take to start, in seconds: images are pulled meanwhile.",
    )
    keep_events_days: int = setting(
        0,
        "store.keep_events_days",
        "Events older than this are dropped from the journal (`sacct` keeps its records). 0: kept for ever.",
    )
    keep_history_days: int = setting(
        0,
        "store.keep_history_days",
        "Jobs that ended longer ago are dropped from what `sacct` shows, as with slurmdbd's PurgeJobAfter; fair share "
        "and usage are not changed by it. 0: kept for ever.",
    )
    router_address: str = setting(
        "127.0.0.1:8600",
        "router.address",
        "Where requests to services are taken, `HOST:PORT`; port 0 is one that the kernel chooses, anew with every "
        "start of the router. A service is at `http://HOST:PORT/NAME/`. Who comes from another machine needs a key of "
        "the service.",
    )
    router_url: str = setting(
        "",
        "router.url",
        "What services' addresses begin with, as people reach the router: `https://models.example.org`. Empty: where "
        "it listens.",
    )
    router_hosts: tuple[str, ...] = setting(
        (),
        "router.hosts",
        "Host names that anybody's services may take (`--host`): `demo.example.org`, `*.models.example.org`. "
        "Others are given by operators: who has a host name gets all requests to it. Empty: only operators give any.",
    )
    service_qos: str = setting(
        "service",
        "services.qos",
        "The QOS of services that name none; it is made when the first service is. Where slurm.conf says nothing of "
        "preemption, jobs that can be requeued make way for it, and for it alone; where it does, its rules hold. On a "
        "Slurm cluster services have it where Slurm does. Empty: services have their owners' QOS.",
    )
    service_ports: str = setting(
        "30000-32767",
        "services.ports",
        "Ports that services' replicas are told to listen at (`$PORT`), each one of its own in the whole cluster.",
    )
    services_prometheus: str = setting(
        "",
        "services.prometheus",
        "The Prometheus that is asked for services with `--query`, as `http://prometheus:9090`. Their owners see what "
        "it answers as a number. Empty: nobody is asked, and these services keep their number of replicas.",
    )
    router_workers: int = setting(
        0, "router.workers", "Processes of the router that share its port. 0: one for two cores of this machine."
    )
    router_tls_certificate: str = setting(
        "",
        "router.tls_certificate",
        "PEM file with the certificate (and its chain) for HTTPS, readable by the daemon's user. Empty: plain HTTP.",
    )
    router_tls_key: str = setting("", "router.tls_key", "PEM file with the key of that certificate.")
    telemetry: str = setting(
        "on",
        "telemetry.gather",
        "Whether is measured what nodes, GPUs and tasks do (docs/telemetry.md): `off` gathers nothing and keeps what "
        "there is.",
        ("on", "off"),
    )
    telemetry_interval_s: int = setting(
        10, "telemetry.interval_s", "Seconds between two looks at nodes, GPUs and tasks, from 1 to 60."
    )
    telemetry_listen: str = setting(
        "",
        "telemetry.listen",
        "Where `bireme node` on the nodes of a Slurm or Kubernetes cluster calls the daemon, `ADDRESS:PORT`, over TLS "
        "and with a token; port 0 is one that the kernel chooses, the same at every start. Empty: nowhere.",
    )
    telemetry_fine_hours: int = setting(
        24, "telemetry.keep_fine_hours", "How long every single sample is kept; then one for each minute is."
    )
    telemetry_minutes_days: int = setting(
        7, "telemetry.keep_minutes_days", "How long a sample for each minute is kept; then one for ten minutes is."
    )
    telemetry_coarse_days: int = setting(
        365, "telemetry.keep_coarse_days", "How long a sample for each ten minutes is kept."
    )
    telemetry_digests_days: int = setting(
        1825,
        "telemetry.keep_digests_days",
        "How long is kept what each job did with what it had, in some hundred bytes (docs/report.md).",
    )
    metrics_address: str = setting(
        "",
        "metrics.address",
        "Where Prometheus reads the daemon's `/metrics`: `PORT` on loopback, or `HOST:PORT`. Whoever can connect there "
        "may read it; of jobs and users it shows what PrivateData leaves to everybody (docs/telemetry.md). `bireme up "
        "--metrics-port` wins over this. Empty: only over the API's socket.",
    )
    metrics_node_address: str = setting(
        "",
        "metrics.node_address",
        "Where the gatherer of each machine serves `/metrics` of that machine and its GPUs, also while the daemon is "
        "dead: `PORT` on its loopback, or `HOST:PORT` with an address that all of them have (`0.0.0.0:9401`: any of "
        "its own). Whoever can connect there may read it. Empty: nowhere.",
    )
    idle_mode: str = setting(
        "off",
        "idle.mode",
        "What is done about jobs that hold GPUs and do not use them, by the rules of `idle.toml` (docs/idle.md): "
        "`dry-run` only lists them (`bireme idle`), `notify` tells their owners, `act` requeues, moves or cancels them "
        "after their grace.",
        ("off", "dry-run", "notify", "act"),
    )
    idle_policy: str = setting(
        "",
        "idle.policy",
        "The file with these rules. Empty: `idle.toml` in BIREME_HOME, else beside slurm.conf.",
    )
    idle_hook: str = setting(
        "",
        "idle.hook",
        "A program that is told of every notice to the owner of an idle job, of its withdrawal and of the job's end "
        "for it: facts in its environment, and as JSON on its stdin. Run by the daemon's user, without a shell.",
    )
    checkpoints_interval_s: int = setting(
        30,
        "checkpoints.interval_s",
        "How often the newest checkpoint of a running job is looked for, by a process of its owner's, where the job "
        "said where it lies (`#BIREME --checkpoint=PATH`); other jobs with GPUs are looked at ten times less often, in "
        "their working directory. 0: never (docs/checkpoints.md).",
    )
    idle_hook_timeout_s: int = setting(30, "idle.hook_timeout_s", "How long that program may take; then it is killed.")
    healing_mode: str = setting(
        "auto",
        "healing.mode",
        "How far Bireme goes by itself when something is found broken (docs/healing.md): `observe` lists what it "
        "would do (`bireme healings`), `suggest` waits for an operator's word, `act` does it. `auto`: `act` with the "
        "embedded engine, `observe` on a Slurm or Kubernetes cluster, whose nodes are others'.",
        ("auto", "observe", "suggest", "act"),
    )
    healing_partitions: str = setting(
        "",
        "healing.partitions",
        "Partitions in which another mode holds: `prod=observe,batch=act`. Of a node in several, the most careful one "
        "counts.",
    )
    healing_breaker: int = setting(
        10,
        "healing.breaker",
        "The circuit breaker: at most this percentage of the nodes, and of the GPUs, that are in service is fenced at "
        "once without an operator's word (one node always). 0: one node and no more.",
    )
    healing_rules: str = setting(
        "",
        "healing.rules",
        "The file that says which jobs are started again after a failure (docs/healing.md). Empty: `healing.toml` in "
        "BIREME_HOME, else beside slurm.conf; where there is none, jobs with --requeue or `#BIREME --heal=restart` "
        "are.",
    )
    healing_hook: str = setting(
        "",
        "healing.hook",
        "A program that is told of every finding, healing and fence: facts in its environment (BIREME_HEALING_...), "
        "and as JSON on its stdin. Run by the daemon's user, without a shell.",
    )
    healing_repair: str = setting(
        "",
        "healing.repair",
        "The program that `bireme health --repair` runs for each fence of its machine: it resets a GPU, reloads a "
        "driver. Facts and evidence in its environment (BIREME_REPAIR_...) and as JSON on its stdin, no arguments, no "
        "shell. When it ends well and the checks pass, the fence is lifted.",
    )
    healing_repair_timeout_s: int = setting(
        600, "healing.repair_timeout_s", "How long that program may take; then it is killed."
    )
    healing_webhook: str = setting(
        "",
        "healing.webhook",
        "An address that the same JSON is sent to with POST. What stands behind its host is in no log: it "
        "may be a secret.",
    )
    healing_hook_timeout_s: int = setting(
        30, "healing.hook_timeout_s", "How long the program, or the address, may take. It is tried three times."
    )
    detect_xid: str = setting(
        "on",
        "detectors.xid",
        "Whether Xid errors of GPUs become findings, by what they say of program, GPU or node (docs/healing.md).",
        ("on", "off"),
    )
    detect_ecc: str = setting(
        "on",
        "detectors.ecc",
        "Whether uncorrected memory errors and rows that cannot be replaced become findings.",
        ("on", "off"),
    )
    detect_off_the_bus: str = setting(
        "on", "detectors.off_the_bus", "Whether a GPU that does not answer becomes a finding.", ("on", "off")
    )
    detect_throttle: str = setting(
        "on", "detectors.throttle", "Whether a busy GPU that heat or power holds down becomes a finding.", ("on", "off")
    )
    detect_throttle_s: int = setting(60, "detectors.throttle_s", "For how many seconds it has to be held down.")
    detect_throttle_percent: int = setting(
        10, "detectors.throttle_percent", "How far below the clock of busy GPUs of its model it has to be, in percent."
    )
    detect_pcie: str = setting(
        "on",
        "detectors.pcie",
        "Whether fewer lanes, an older generation or many replays than its like become findings of a GPU.",
        ("on", "off"),
    )
    detect_pcie_s: int = setting(60, "detectors.pcie_s", "For how many seconds.")
    detect_pcie_replays_per_min: int = setting(
        8, "detectors.pcie_replays_per_min", "So many packets that are sent again in a minute are too many."
    )
    detect_nvlink: str = setting("on", "detectors.nvlink", "Whether errors of NVLinks become findings.", ("on", "off"))
    detect_nvlink_s: int = setting(60, "detectors.nvlink_s", "For how many seconds.")
    detect_nvlink_crc_per_s: int = setting(
        100, "detectors.nvlink_crc_per_s", "So many checksum errors in a second are too many."
    )
    detect_stray: str = setting(
        "on", "detectors.stray", "Whether processes on a GPU that belong to no job become a finding.", ("on", "off")
    )
    detect_stray_mib: int = setting(500, "detectors.stray_mib", "How much of a GPU's memory they have to have, in MiB.")
    detect_stray_s: int = setting(60, "detectors.stray_s", "For how many seconds.")
    detect_nic: str = setting(
        "on",
        "detectors.nic",
        "Whether network links that are down or flap become findings, by the kernel's lines.",
        ("on", "off"),
    )
    detect_nic_s: int = setting(10, "detectors.nic_s", "For how many seconds a link has to be down.")
    detect_nic_flaps: int = setting(
        3, "detectors.nic_flaps", "A link flaps that goes down so often within ten minutes."
    )
    detect_filesystem: str = setting(
        "on",
        "detectors.filesystem",
        "Whether file systems that hang or cannot be written become findings, by the kernel's lines.",
        ("on", "off"),
    )
    detect_filesystem_s: int = setting(
        60, "detectors.filesystem_s", "For how many seconds a file server must not have answered."
    )
    detect_clock: str = setting(
        "on", "detectors.clock", "Whether a node whose clock is off becomes a finding.", ("on", "off")
    )
    detect_clock_ms: int = setting(
        5000, "detectors.clock_ms", "How far a clock may be off by the daemon's, in milliseconds, from 2000."
    )
    detect_clock_s: int = setting(60, "detectors.clock_s", "For how many seconds.")
    detect_lemon: str = setting(
        "on",
        "detectors.lemon",
        "Whether a node on which jobs fail more often than the same users' jobs elsewhere becomes a finding.",
        ("on", "off"),
    )
    detect_lemon_days: int = setting(7, "detectors.lemon_days", "How many days of ends of jobs count.")
    detect_lemon_one_in: int = setting(
        10000,
        "detectors.lemon_one_in",
        "A pool whose nodes are all alike raises one false alarm in so many looks at most.",
    )
    detect_hang: str = setting(
        "on", "detectors.hang", "Whether a job that has stopped getting on becomes a finding.", ("on", "off")
    )
    detect_hang_s: int = setting(
        40,
        "detectors.hang_s",
        "For how many seconds a job must have shown no sign of life; longer where it was quiet for longer before.",
    )
    detect_straggler: str = setting(
        "on", "detectors.straggler", "Whether a GPU that is slower than its gang becomes a finding.", ("on", "off")
    )
    detect_straggler_percent: int = setting(
        10, "detectors.straggler_percent", "How far below the clock of its gang a GPU has to be, in percent."
    )
    detect_straggler_s: int = setting(120, "detectors.straggler_s", "For how many seconds.")
    detect_loss: str = setting(
        "off",
        "detectors.loss",
        "Whether the MLflow runs of running jobs are asked once a minute for a loss that is no number.",
        ("on", "off"),
    )
    detect_health: str = setting(
        "on",
        "detectors.health",
        "Whether the machine that the daemon's nodes are on is checked (`bireme health`), and what fails is a finding.",
        ("on", "off"),
    )
    detect_health_s: int = setting(300, "detectors.health_s", "Seconds between two such checks; 0: never.")
    diagnosis_rules: str = setting(
        "",
        "diagnosis.rules",
        "The folder with a site's own rules of `bireme diagnose` (docs/diagnosis.md). Empty: `rules.d` in BIREME_HOME, "
        "else beside slurm.conf.",
    )
    experiments_mlflow: str = setting(
        "",
        "experiments.mlflow",
        "The MLflow tracking server that jobs are told of, as `http://mlflow.example.org:5000` "
        "(docs/experiments.md). It must be reached from the nodes and from the daemon. Empty: none.",
    )
    experiments_mlflow_experiment: str = setting(
        "{cluster}",
        "experiments.mlflow_experiment",
        "The experiment that jobs' runs belong to; it may hold `{cluster}`, `{account}`, `{user}`, `{job}` (the job's "
        "name) and `{partition}`. It is made when it is missing.",
    )
    experiments_mlflow_runs: str = setting(
        "on",
        "experiments.mlflow_runs",
        "Whether a run is made for each job at its first start, and its id handed to all of them. `off`: jobs have the "
        "address and the experiment only, and make their runs themselves.",
        ("on", "off"),
    )
    experiments_mlflow_wait_ms: int = setting(
        500,
        "experiments.mlflow_wait_ms",
        "How long a job's first start may wait for its run, in milliseconds, up to 60000. While the server does not "
        "answer in time nobody waits for it.",
    )
    experiments_mlflow_token_file: str = setting(
        "",
        "experiments.mlflow_token_file",
        "A file with what the daemon shows to MLflow: a token, or `user:password`. Nobody but the daemon's user may "
        "read it, and jobs are not given it. Empty: nothing.",
    )
    experiments_system_metrics_s: int = setting(
        60,
        "experiments.system_metrics_s",
        "How often a running job's run is told what its GPUs and nodes do, in seconds, as MLflow's system metrics. "
        "0: not at all.",
    )
    experiments_wandb: str = setting(
        "off",
        "experiments.wandb",
        "Whether jobs are told the id of their run in Weights & Biases, the same at every start.",
        ("on", "off"),
    )
    experiments_wandb_url: str = setting(
        "", "experiments.wandb_url", "WANDB_BASE_URL of these jobs: a server of one's own. Empty: W&B's."
    )
    experiments_wandb_entity: str = setting("", "experiments.wandb_entity", "WANDB_ENTITY of these jobs.")
    experiments_wandb_project: str = setting("", "experiments.wandb_project", "WANDB_PROJECT of these jobs.")
    experiments_wandb_mode: str = setting(
        "",
        "experiments.wandb_mode",
        "WANDB_MODE of these jobs; `offline` where nodes do not reach the server. Empty: not said.",
        ("", "online", "offline", "disabled"),
    )
    experiments_jobs: str = setting(
        "gpus", "experiments.jobs", "Which jobs are told of all this: those with GPUs, or all.", ("gpus", "all")
    )
    experiments_partitions: tuple[str, ...] = setting(
        (), "experiments.partitions", "Only jobs in these partitions are told. None: in all."
    )
    web_pages: str = setting(
        "auto",
        "web.pages",
        "The pages that people look at (docs/web.md): `on` serves them with the daemon, `auto` from the first "
        "`bireme web` on until `bireme web off`, `off` never.",
        ("auto", "on", "off"),
    )
    web_listen: str = setting(
        "127.0.0.1:0",
        "web.listen",
        "Where the pages are served, `ADDRESS:PORT`; port 0 is one that the kernel chooses, the same at every start "
        "where it is free. Anywhere but on loopback they are served over TLS alone (`web.tls_certificate`).",
    )
    web_url: str = setting(
        "",
        "web.url",
        "What the pages' addresses begin with, as people reach them: `https://gpus.example.org/bireme` behind a "
        "reverse proxy; its path is the prefix of all pages. Empty: where they are served, by this machine's name if "
        "that is at all of its addresses.",
    )
    web_tls_certificate: str = setting(
        "",
        "web.tls_certificate",
        "PEM file with the certificate (and its chain) of the pages, readable by the daemon's user. Empty: plain HTTP, "
        "on loopback alone.",
    )
    web_tls_key: str = setting("", "web.tls_key", "PEM file with the key of that certificate.")
    web_session_hours: int = setting(
        168, "web.session_hours", "How long somebody who logged in to the pages stays so, at most; from 1 on."
    )
    web_idle_hours: int = setting(
        24, "web.idle_hours", "How long somebody stays logged in to the pages who does not look at them; from 1 on."
    )
    max_body_bytes: int = setting(
        64 * 1024 * 1024, "api.max_body_bytes", "The largest request the API reads, in bytes."
    )
    keep_alive_s: int = setting(
        75, "api.keep_alive_s", "How long an idle connection to the API is kept open, in seconds."
    )
    max_connections: int = setting(
        4096,
        "api.max_connections",
        "How many connections the API serves at once; fewer where the daemon may not open so many files. One that "
        "comes when all are taken has the place of an idle or half-sent one, else it is told to try again.",
    )
    max_connections_each: int = setting(
        1024, "api.max_connections_per_user", "How many of them may be of one user, at most three quarters of all."
    )
    head_timeout_s: int = setting(
        10, "api.head_timeout_s", "How long the head of a request may take to arrive, in seconds."
    )
    body_timeout_s: int = setting(
        60, "api.body_timeout_s", "A request of which next to nothing comes for so long is given up, in seconds."
    )
    answer_timeout_s: int = setting(
        120, "api.answer_timeout_s", "An answer of which nothing is read for so long is given up, in seconds."
    )
    log_level: str = setting(
        "info", "log.level", "How much log/daemon.log says.", ("debug", "info", "warning", "error")
    )
    log_max_bytes: int = setting(
        10 * 1024 * 1024, "log.max_bytes", "log/daemon.log is rotated when it reaches this size, in bytes."
    )
    log_keep: int = setting(3, "log.keep", "How many rotated log files are kept.")

    @property
    def host_engine(self) -> str:
        """The engine that Bireme places for, or the only one."""
        return self.engine.partition("+")[0]

    @property
    def has_guest(self) -> bool:
        """A Slurm cluster stands beside the host."""
        return "+" in self.engine

    def site_path(self, given: str, home: str, name: str) -> str:
        """Of a file or folder that a site may have: where a setting says (from the home on), else in the home, else
        beside slurm.conf. It need not be there."""
        if given:
            return os.path.abspath(os.path.join(home, os.path.expanduser(given)))
        own = os.path.join(home, name)
        beside = os.path.join(os.path.dirname(self.conf), name) if self.conf else own
        return beside if not os.path.exists(own) and os.path.exists(beside) else own


@dataclass(frozen=True, slots=True)
class Description:
    """One row of the table."""

    name: str
    key: str
    variable: str
    default: Any
    choices: tuple[str, ...]
    text: str


def describe() -> Iterator[Description]:
    """Every setting, in the order of `Settings`."""
    blank = Settings()
    for one in fields(Settings):
        key = one.metadata["key"]
        variable = "BIREME_" + key.upper().replace(".", "_")
        text, choices = one.metadata["description"], one.metadata["choices"]
        yield Description(one.name, key, variable, getattr(blank, one.name), choices, text)


def as_texts(settings: Settings) -> dict[str, str]:
    """All of them by their keys, as they are written in variables."""
    values = {row.key: getattr(settings, row.name) for row in describe()}
    return {key: ",".join(value) if isinstance(value, tuple) else str(value) for key, value in values.items()}


def load(home: str, conf: str = "", environ: Mapping[str, str] | None = None, *, engine: str = "") -> Settings:
    """The settings in force. `conf` (from the command line) wins over SLURM_CONF, which wins over the file.

    `engine` (from the command line) wins over the variable, which wins over the file.

    Where nothing says it, the cluster is what it was: somebody who types `bireme up` after a crash means that one.
    """
    environ = os.environ if environ is None else environ
    named_conf = "" if conf == NO_CONF else conf or environ.get("SLURM_CONF", "")
    values: dict[str, Any] = {}
    path = _find(home, named_conf)
    if path:
        values |= _from_file(path)
    values |= _from_environment(environ)
    if named_conf or conf == NO_CONF:
        values["conf"] = named_conf
    elif not values.get("conf"):
        values["conf"] = _remembered(Paths(home), Paths(home).conf_in_force, "--conf FILE (none: this machine)")
    if engine or "engine" not in values:
        named_engine = engine or latest_engine(home)
        values |= {"engine": _checked(_row("engine"), named_engine, "--engine")} if named_engine else {}
    if flagged := _flagged_metrics(Paths(home)):
        values["metrics_address"] = flagged
    if values.get("conf"):
        values["conf"] = os.path.abspath(os.path.join(home, os.path.expanduser(values["conf"])))
    return Settings(**values)


def _flagged_metrics(paths: Paths) -> str:
    """What the latest `bireme up --metrics-port` said; empty: nothing, or that the settings are to say it."""
    try:
        return read_sealed(paths.metrics_in_force) or ""
    except DamagedFileError as error:
        raise SettingsError(f"{error}: say what is meant with bireme up --metrics-port PORT (none: nowhere)") from error


def remember(home: str, settings: Settings) -> None:
    """Notes the slurm.conf (or none) and the engine that this start was made with, for the next one."""
    paths = Paths(home)
    write_sealed(paths.conf_in_force, settings.conf)
    write_sealed(paths.engine_in_force, settings.engine)
    write_sealed(paths.settings_in_force, file_text(paths.settings))


def seal_remembered(home: str) -> None:
    """Before a home gets its first mark: what an earlier Bireme remembered (or that it is nothing) gets its sum."""
    paths = Paths(home)
    if not os.path.exists(paths.mark):
        for path in (paths.conf_in_force, paths.engine_in_force):
            write_sealed(path, _of_before(path))
        write_sealed(paths.settings_in_force, file_text(paths.settings))


def latest_engine(home: str) -> str:
    """The engine of the latest start; empty when there was none. Raises SettingsError where nobody can tell."""
    return _remembered(Paths(home), Paths(home).engine_in_force, "--engine NAME")


def latest_engine_if_known(home: str) -> str:
    """As `latest_engine`, for who was told which engine is meant."""
    try:
        return latest_engine(home)
    except SettingsError:
        return ""


def _remembered(paths: Paths, path: str, option: str) -> str:
    """Of a home that has a mark the file is there and has a sum; nobody guesses which cluster was meant."""
    if not os.path.exists(paths.mark):
        return _of_before(path)
    try:
        text = read_sealed(path)
    except DamagedFileError as error:
        raise SettingsError(f"{error}: say what is meant with bireme up {option}") from error
    if text is None:
        raise SettingsError(f"{path} is gone: say what is meant with bireme up {option}")
    return text


def _of_before(path: str) -> str:
    """Of a start that did not come far enough to make a mark, or of an earlier Bireme, which wrote the bare text."""
    try:
        return read_sealed(path) or ""
    except DamagedFileError:
        return file_text(path)


def _row(name: str) -> Description:
    return next(row for row in describe() if row.name == name)


def _find(home: str, conf: str) -> str | None:
    places = [os.path.join(home, FILE_NAME)]
    if conf:
        places.append(os.path.join(os.path.dirname(os.path.abspath(conf)), FILE_NAME))
    return next((place for place in places if os.path.exists(place)), None)


def _from_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    known = {row.key: row for row in describe()}
    values = {}
    for key, value in _flat(document):
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            more = f"did you mean {near[0]}?" if near else f"known are: {', '.join(known)}"
            raise SettingsError(f"{path}: unknown setting {key!r}; {more}")
        values[known[key].name] = _checked(known[key], value, f"{path}: {key}")
    return values


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for row in describe():
        text = environ.get(row.variable)
        if text is None:
            continue
        value: Any = text
        if isinstance(row.default, tuple):
            value = [word.strip() for word in text.split(",") if word.strip()]
        elif isinstance(row.default, int) and text.isascii() and text.isdigit():
            value = int(text)
        values[row.name] = _checked(row, value, row.variable)
    return values


def _checked(row: Description, value: Any, place: str) -> Any:
    if isinstance(row.default, tuple):
        good, expected = isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of texts"
    elif isinstance(row.default, int):
        good, expected = type(value) is int and value >= 0, "a whole number, 0 or more"
    else:
        good, expected = isinstance(value, str), "a text"
        if row.choices:
            good, expected = value in row.choices, "one of " + ", ".join(row.choices)
    if not good:
        raise SettingsError(f"{place}: {value!r} is not possible here: it must be {expected}")
    return tuple(value) if isinstance(value, list) else value


def markdown() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "None is needed. They are read from `bireme.toml` in `BIREME_HOME` (else from one beside `slurm.conf`), then",
        "from the environment, which wins. What Slurm has a word for is set in `slurm.conf`.",
        "",
        "Two variables are not settings of the daemon but say which cluster is meant: `BIREME_HOME` (where its state",
        "lives; default `$XDG_STATE_HOME/bireme`, else `~/.local/state/bireme`) and `SLURM_CONF` (its slurm.conf).",
        "",
        "Generated by `python -m bireme.daemon.settings`; a test fails when it is not up to date.",
        "",
        "| in bireme.toml | variable | default | what it does |",
        "|---|---|---|---|",
    ]
    for row in describe():
        default = "empty" if row.default in ("", ()) else f"`{row.default}`"
        choices = f" One of {', '.join(f'`{choice}`' for choice in row.choices)}." if len(row.choices) > 1 else ""
        lines.append(f"| `{row.key}` | `{row.variable}` | {default} | {row.text}{choices} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
