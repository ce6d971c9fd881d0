"""`scontrol show config`."""

from bireme.slurm.conf.keys import GLOBAL_KEYS, SHOWN
from bireme.slurm.conf.loading import parse_configuration
from bireme.slurm.conf.show import DaemonFacts, render_config

FACTS = DaemonFacts(now="2026-01-31T12:00:00", boot_time="2026-01-31T11:00:00", next_job_id=7, version="22.05.8")


def shown(slurm: str) -> dict[str, str]:
    text = render_config(parse_configuration({"slurm.conf": slurm}).cluster, FACTS)
    first, *rest = text.splitlines()
    assert first == "Configuration data as of 2026-01-31T12:00:00"
    return {key.rstrip(): value for key, _, value in (line.partition(" = ") for line in rest if line)}


def test_defaults_are_printed_as_slurm_prints_them() -> None:
    config = shown("ClusterName=c\nNodeName=n1")
    assert config["KillWait"] == "30 sec"
    assert config["OverTimeLimit"] == "0 min"
    assert config["EpilogMsgTime"] == "2000 usec"
    assert config["Prolog"] == "(null)"
    assert config["MaxMemPerNode"] == "UNLIMITED"
    assert config["NEXT_JOB_ID"] == "7"
    assert "PriorityWeightAge" not in config


def test_values_are_printed_with_their_units() -> None:
    config = shown(
        "NodeName=n1\nKillWait=5\nDefMemPerCPU=512\nSelectTypeParameters=CR_Core_Memory\nJobRequeue=no\n"
        "SlurmctldHost=a(10.0.0.1)\nSlurmctldHost=b\nSuspendTime=600\nDefCpuPerGPU=4\nMaxBatchRequeue=3\nUsePAM=1\n"
    )
    assert config["KillWait"] == "5 sec"
    assert (config["DefMemPerCPU"], "DefMemPerNode" in config) == ("512", False)
    assert config["SelectTypeParameters"] == "CR_CORE_MEMORY"
    assert config["JobRequeue"] == "0"
    assert (config["SlurmctldHost[0]"], config["SlurmctldHost[1]"]) == ("a(10.0.0.1)", "b")
    assert config["SuspendTime"] == "600 sec"
    assert config["JobDefaults"] == "DefCpuPerGPU=4"
    assert config["MaxBatchRequeue"] == "3"
    assert config["UsePam"] == "Yes"


def test_multifactor_priority_shows_its_weights() -> None:
    config = shown("NodeName=n1\nPriorityType=priority/multifactor\nPriorityWeightFairshare=50000\nPriorityMaxAge=14-0")
    assert config["PriorityWeightFairShare"] == "50000"
    assert config["PriorityMaxAge"] == "14-00:00:00"
    assert config["PriorityDecayHalfLife"] == "7-00:00:00"


def test_what_slurm_works_out_is_worked_out() -> None:
    config = shown("NodeName=n[1-8]\nAccountingStorageTRES=gres/gpu,cpu\nPriorityType=priority/multifactor")
    assert config["AccountingStorageTRES"] == "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu"
    assert config["MaxDBDMsgs"] == "20032"
    assert config["FairShareDampeningFactor"] == "1"
    assert "FairShareDampeningFactor" not in shown("NodeName=n1")


def test_passwords_are_not_shown() -> None:
    assert "secret" not in "".join(shown("NodeName=n1\nAccountingStoragePass=secret\nJobCompPass=secret").values())


def test_every_key_that_is_shown_is_known() -> None:
    assert {key for key, _, _ in SHOWN} <= GLOBAL_KEYS
