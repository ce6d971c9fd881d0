"""The language of services: `#BIREME` lines and flags, what they become, and what is refused in which words."""

from __future__ import annotations

import shlex
from operator import attrgetter
from pathlib import Path

import pytest

from bireme.core.model.jobs import JobSpec, Owner
from bireme.core.model.serving.names import is_service_name
from bireme.core.model.serving.probes import Probe
from bireme.core.model.serving.scaling import Measure, ScalingTarget, Shift
from bireme.core.model.serving.services import Amount, ServiceSpec
from bireme.slurm.options.catalogue.all_options import OPTIONS
from bireme.slurm.options.context import SubmitContext
from bireme.slurm.options.errors import OptionError
from bireme.slurm.records.services import SERVICE_FIELDS
from bireme.slurm.serving.building import ServiceSubmission, read_service
from bireme.slurm.serving.flags import AS_OPTIONS, FLAGS, Flag
from bireme.slurm.serving.help import help_text, markdown_rows
from bireme.slurm.serving.reading import LONGEST_LINE, read_line, read_lines
from bireme.slurm.serving.understood import describe_service, duration_text
from bireme.slurm.serving.values import Written, suggested_name

OWNER = Owner(uid=1, gid=1, user="ann")
CONTEXT = SubmitContext(owner=OWNER, cwd="/home/ann", now=0.0, utc_offset=lambda _: 0.0)
STANDARD = ServiceSpec(name="x", job=JobSpec(owner=OWNER))


def served(words: str, *lines: str) -> ServiceSubmission:
    script = "\n".join(["#!/bin/bash", *lines, 'exec server --port "$PORT"', ""])
    return read_service(read_line(shlex.split(words)), script.encode(), CONTEXT)


def refusal(words: str, *lines: str) -> str:
    with pytest.raises(OptionError) as refused:
        served(words, *lines)
    return str(refused.value)


def test_the_script_of_the_first_page() -> None:
    spec = served(
        "chat.sh", "#SBATCH --gpus=1 --mem=32G", "#BIREME --replicas=0-4 --health=/health --target-concurrency=16"
    ).spec
    assert (spec.name, spec.job.name) == ("chat", "chat")
    assert spec.job.resources.memory_per_node_mib == 32 * 1024
    assert (spec.scaling.replicas_min, spec.scaling.replicas_max) == (0, 4)
    assert spec.scaling.targets == (ScalingTarget(Measure.CONCURRENCY, 16.0),)
    assert spec.probes.startup == Probe(path="/health", period_s=1.0, failure_threshold=1800)
    assert spec.probes.readiness == Probe(path="/health", period_s=2.0)
    assert spec.probes.liveness is None


def test_without_any_flag_it_is_one_replica_with_all_defaults() -> None:
    asked = served("chat.sh")
    assert asked.spec == ServiceSpec(name="chat", job=asked.spec.job)
    assert asked.notices == ()


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.place and flag.default], ids=lambda flag: flag.name)
def test_the_default_that_help_tells_is_the_fields(flag: Flag) -> None:
    value = attrgetter(flag.place)(STANDARD)
    assert value is None if flag.default == "no limit" else flag.read(Written(flag.name, flag.default)) == value


SAID = {
    "name": "talk", "replicas": "1-3", "health": "/h", "startup": "/s", "startup-timeout": "1h", "readiness": "/r",
    "liveness": "tcp", "target-concurrency": "4", "target-rps": "2.5", "target": "m=3", "query": "sum(x{a='b'})=10",
    "at": "Sat,Sun 00:30 max=2", "stable-window": "90s", "panic-window": "9s", "panic-threshold": "3", "up-rate": "4",
    "down-rate": "1.5", "down-delay": "2m", "idle": "1m", "standby": "1", "max-concurrency": "8", "queue": "5",
    "queue-timeout": "3s", "connect-timeout": "500ms", "first-byte-timeout": "7s", "idle-timeout": "8s",
    "timeout": "1h", "affinity-header": "X-Session", "affinity-cookie": "sid", "model": "org/chat-8b",
    "host": "Chat.Example.org", "body-limit": "10M", "surge": "50%", "unavailable": "1", "ready-within": "2h",
    "canary": "10%", "drain": "5s",
}  # fmt: skip


def test_every_flag_says_the_same_on_a_line_of_the_script_and_on_the_command_line() -> None:
    assert SAID.keys() == {flag.name for flag in FLAGS}
    for name, value in SAID.items():
        in_script = served("chat.sh", f'#BIREME --{name} "{value}"').spec
        assert in_script == served(f'chat.sh --{name}="{value}"').spec
        assert in_script == served(f'--{name} "{value}" chat.sh').spec
        assert in_script != served("chat.sh").spec, f"--{name} changes nothing"


def test_all_flags_together() -> None:
    spec = served("chat.sh " + " ".join(f'--{name}="{value}"' for name, value in SAID.items())).spec
    assert spec.name == "talk"
    assert spec.probes.startup == Probe(path="/s", period_s=1.0, failure_threshold=3600)
    assert (spec.probes.readiness.path, spec.probes.liveness) == ("/r", Probe())
    assert [(target.measure, target.value, target.name) for target in spec.scaling.targets] == [
        (Measure.CONCURRENCY, 4.0, ""),
        (Measure.RATE, 2.5, ""),
        (Measure.METRIC, 3.0, "m"),
        (Measure.QUERY, 10.0, "sum(x{a='b'})"),
    ]
    assert spec.scaling.shifts == (Shift((5, 6), 30, None, 2),)
    assert (spec.updating.surge, spec.updating.canary_percent) == (Amount(50, percent=True), 10)
    assert (spec.routing.connect_timeout_s, spec.routing.total_timeout_s) == (0.5, 3600.0)
    assert (spec.routing.hosts, spec.routing.body_limit) == (("chat.example.org",), 10 << 20)
    assert spec.drain_s == 5.0


def test_the_command_line_wins_and_replaces_what_counts_every_time() -> None:
    lines = ("#BIREME --replicas=2 --model=a --model=b", "#BIREME --drain=5s --drain=7s")
    assert served("chat.sh", *lines).spec.routing.models == ("a", "b")
    spec = served("chat.sh --replicas 3 --model c", *lines).spec
    assert (spec.scaling.replicas_min, spec.routing.models, spec.drain_s) == (3, ("c",), 7.0)


def test_sbatch_options_and_arguments_of_the_script_stand_among_the_flags() -> None:
    asked = served("--mem 2G --replicas 2 bin/chat.sh -p debug one --drain 3s two -c 4 -- --port 80 --replicas 9")
    assert asked.spec.job.argv == ("one", "two", "--port", "80", "--replicas", "9")
    assert asked.spec.job.partitions == ("debug",)
    assert asked.spec.job.resources.cpus_per_task == 4
    assert (asked.spec.scaling.replicas_max, asked.spec.drain_s) == (2, 3.0)


def test_a_start_that_may_take_longer_gives_the_revision_longer() -> None:
    assert served("chat.sh --startup-timeout 2h").spec.updating.ready_within_s == 7800.0
    assert served("chat.sh --startup-timeout 2h --ready-within 1m").spec.updating.ready_within_s == 60.0


def test_probes_by_path_port_and_command_with_their_timings() -> None:
    probes = served(
        "chat.sh --startup 'tcp period=5s failures=10' --readiness '/r timeout=3s successes=2 delay=1s'"
        """ --liveness "exec:'test -e up.$BIREME_REPLICA && echo \\"a  b\\" >&2' period=20s" """
    ).spec.probes
    assert probes.startup == Probe(period_s=5.0, failure_threshold=10)
    assert probes.readiness == Probe(path="/r", period_s=2.0, timeout_s=3.0, success_threshold=2, initial_delay_s=1.0)
    assert probes.liveness == Probe(
        command=("/bin/sh", "-c", 'test -e up.$BIREME_REPLICA && echo "a  b" >&2'), period_s=20.0
    )


@pytest.mark.parametrize(
    ("words", "line", "says"),
    [
        ("chat.sh --replcas 2", "", "there is no flag --replcas; did you mean --replicas?"),
        ("chat.sh", "#BIREME --replcas=2", "chat.sh: line 2: there is no flag --replcas; did you mean --replicas?"),
        ("chat.sh --frobnicate", "", "there is no flag --frobnicate; `bireme serve --help` lists all flags"),
        ("chat.sh", "#BIREME --mem=4G", "chat.sh: line 2: --mem is an option of sbatch: write it on a #SBATCH line"),
        ("chat.sh", "#SBATCH --replicas=2", "chat.sh: line 2: --replicas is a flag of services: write it on a #BIREME"),
        ("chat.sh", "#BIREME replicas=2", "chat.sh: line 2: 'replicas=2' is no flag"),
        ("chat.sh", "#BIREME --replicas=4-2", "chat.sh: line 2: --replicas=4-2: from 4 to 2 is backwards; 2-4 would"),
        ("chat.sh", "#BIREME --drain", "chat.sh: line 2: option '--drain' requires an argument"),
        ("chat.sh", "#BIREME --drain='5", "chat.sh: line 2: Unmatched `'`"),
        ("chat.sh --replicas 0", "", "0-1 is a service that may sleep"),
        ("chat.sh --replicas 1000000", "", "at most has to be 1 to 10000"),
        ("chat.sh --replicas two", "", "a number such as 2, or from-to such as 0-4"),
        ("chat.sh --replicas -1", "", "a number such as 2"),
        ("chat.sh --replicas ٢", "", "a number such as 2"),
        ("chat.sh --canary 0%", "", "1% to 99%"),
        ("chat.sh --canary 100%", "", "1% to 99%"),
        ("chat.sh --surge 101%", "", "0% to 100%"),
        ("chat.sh --surge 0", "", "leave an update no way to go"),
        ("chat.sh --panic-window 2m", "", "panic window: 1 s to the stable window"),
        ("chat.sh --at 'Mon-Fri 08:00 min=4'", "", "shift Mon-Fri 08:00: the minimum (4) is above the maximum (1)"),
        ("chat.sh --at 'Mon-Fry 08:00 min=4'", "", "'Mon-Fri 08:00 min=4'"),
        ("chat.sh --at 'Mon 8 min=4'", "", "'Mon-Fri 08:00 min=4'"),
        ("chat.sh --at 'Mon 08:00'", "", "'Mon-Fri 08:00 min=4'"),
        ("chat.sh --at 'Mon 08:00 min=4 max=2'", "", "min=4 is above max=2"),
        ("chat.sh --target waiting", "", "vllm:num_requests_waiting=4"),
        ("chat.sh --target waiting=0", "", "vllm:num_requests_waiting=4"),
        ("chat.sh --target-concurrency 0", "", "a number above 0"),
        ("chat.sh --target-rps nan", "", "a number above 0"),
        ("chat.sh --drain 1e9", "", "such as 90, 90s, 500ms, 15m, 2h or 1d"),
        ("chat.sh --drain inf", "", "such as 90, 90s"),
        ("chat.sh --health health", "", "begins with /"),
        ("chat.sh --health '/a b'", "", "begins with /"),
        ("chat.sh --liveness '/x often=yes'", "", "is not one of delay= period="),
        ("chat.sh --liveness '/x period=0s'", "", "with a value above 0"),
        ("chat.sh --liveness exec:", "", "exec: needs a line of shell"),
        ("chat.sh --liveness \"exec:'echo \\\"' period=1s\"", "", "exec: needs a line of shell"),
        ("chat.sh --readiness none", "", "nobody knows when a replica can take requests"),
        ("chat.sh --startup 'tcp failures=3' --startup-timeout 5m", "", "say the same"),
        ("chat.sh --host https://chat.example.org/", "", "without scheme, port and path"),
        ("chat.sh --affinity-header 'X: y'", "", "the name of a header"),
        ("chat.sh --body-limit -1", "", "a number of bytes"),
        ("chat.sh --array 1-3", "", "--array is nothing for a service: --replicas says how many"),
        ("chat.sh --dependency afterok:4", "", "--dependency is nothing for a service"),
        ("chat.sh --begin now+1hour", "", "--begin is nothing for a service: --at"),
        ("chat.sh --hold", "", "--hold is nothing for a service"),
        ("chat.sh --test-only", "", "`bireme explain SCRIPT`"),
        ("chat.sh -M other", "", "--clusters is nothing for a service: name a partition"),
        ("chat.sh", "#SBATCH hetjob", "cannot be heterogeneous"),
    ],
)  # fmt: skip
def test_what_is_refused_says_what_would_work(words: str, line: str, says: str) -> None:
    assert says in refusal(words, *filter(None, [line]))


@pytest.mark.parametrize(
    "name",
    ["", "../etc", "/etc/passwd", "a/b", "a b", "chat.example.org", "Chat", "-a", "a-", "a_b", "é", "a\nb", "a\x1b[0m",
     "v1", "x" * 64, "..", ".", "%2e", "a%2fb"],
)  # fmt: skip
def test_names_that_are_paths_hosts_or_worse_are_refused_with_one_that_works(name: str) -> None:
    assert not is_service_name(name)
    assert is_service_name(suggested_name(name))
    if name:
        assert f"{suggested_name(name)} would work" in refusal(f"chat.sh --name {shlex.quote(name)}")


@pytest.mark.parametrize("name", ["a", "chat", "chat-8b", "0", "x" * 63])
def test_names_that_work(name: str) -> None:
    assert served(f"chat.sh --name {name}").spec.name == name


def test_a_service_is_called_after_its_job_name_or_its_script() -> None:
    assert served("bin/My_Chat.v2.sh").spec.name == "my-chat-v2"
    assert served("chat.sh -J Other").spec.name == "other"
    assert served("chat.sh -J Other --name third").spec.name == "third"


def test_a_line_of_megabytes_is_refused_and_not_repeated() -> None:
    said = refusal("chat.sh", "#BIREME --name=" + "x" * LONGEST_LINE)
    assert str(LONGEST_LINE) in said
    assert len(said) < 200
    assert len(refusal("chat.sh", "#BIREME --name=" + "x" * 60_000)) < 400
    assert len(refusal("chat.sh", "#BIREME --" + "x" * 60_000)) < 400


def test_what_is_asked_for_and_not_applied_is_told() -> None:
    assert "--requeue is not applied" in served("chat.sh --requeue").notices[0]
    assert served("chat.sh --no-requeue").notices == ()


def test_a_target_above_what_a_replica_takes_is_told_of() -> None:
    (told,) = served("chat.sh --replicas=0-4 --max-concurrency=8 --target-concurrency=16").notices
    assert "requests wait in the queue before another replica is asked for; 5.6 would not let them wait" in told
    assert served("chat.sh --replicas=0-4 --max-concurrency=8 --target-concurrency=8").notices == ()
    assert served("chat.sh --replicas=2 --max-concurrency=8 --target-concurrency=16").notices == ()


def test_lines_after_the_first_command_are_told_of() -> None:
    found = read_lines("#!/bin/sh\n\n# words\n#BIREME --drain=1s\ntrue\n#BIREME --drain=9s\n", "chat.sh")
    assert [(each.flag, each.text) for each in found.flags] == [("drain", "1s")]
    assert found.warnings == ("chat.sh: line 6 is not read: #BIREME lines stand before the first command",)


def test_no_flag_has_the_name_of_an_option_of_sbatch() -> None:
    assert not {option.name for option in OPTIONS} & {option.name for option in AS_OPTIONS}


def test_help_names_every_flag_within_120_columns() -> None:
    text = help_text()
    assert all(f"--{flag.name}={flag.argument}" in text for flag in FLAGS)
    assert max(len(line) for line in text.splitlines()) <= 120


def test_the_documentation_has_every_flag_and_every_field_of_a_record() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "services.md").read_text()
    assert "\n".join(markdown_rows()) in page
    assert "\n".join(f"| `{name}` | {text} |" for name, text in SERVICE_FIELDS.items()) in page


def test_what_was_understood_is_told_in_words() -> None:
    spec = served("chat.sh --replicas 0-3 --at 'Mon-Fri 08:00 min=2' --canary 10% --health /h --standby 1").spec
    told = {label: text for section in describe_service(spec) for label, text in section.rows}
    assert told["replicas"] == "0 to 3, as the load needs"
    assert told["from"] == "Mon-Fri 08:00 min=2"
    assert told["canary"].startswith("10% of the requests")
    assert told["started when"] == "GET /h answers 200 to 399 within 1s, asked every 1s; it may take 30m"


def test_the_command_of_a_probe_is_told_as_it_was_written() -> None:
    spec = served("""chat.sh --liveness "exec:'test -e up && true' period=20s" """).spec
    told = {label: text for section in describe_service(spec) for label, text in section.rows}
    assert told["alive while"].startswith("`test -e up && true` exits with 0 within 1s")


def test_times_are_told_as_one_writes_them() -> None:
    told = [duration_text(seconds) for seconds in (0, 0.5, 1.5, 60, 90, 300, 3600, 5400, 86400)]
    assert told == ["0s", "500ms", "1.5s", "60s", "90s", "5m", "1h", "90m", "1d"]
