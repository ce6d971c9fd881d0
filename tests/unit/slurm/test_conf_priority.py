"""slurm.conf's Priority* keys: typed, with Slurm's defaults, and refused with the line where they are wrong."""

import pytest

from bireme.core.model.cluster import PrioritySettings, Settings
from bireme.slurm.conf.diagnostics import ConfigurationError
from bireme.slurm.conf.loading import parse_configuration

NODE = "NodeName=n1 CPUs=2\nPartitionName=p Nodes=ALL Default=YES\n"


def settings(*lines: str) -> Settings:
    return parse_configuration({"slurm.conf": NODE + "\n".join(lines)}).cluster.settings


def test_without_any_key_it_is_first_come_first_served() -> None:
    found = settings()
    assert found.priority == PrioritySettings()
    assert (found.priority.multifactor, found.priority.calc_period_s) == (False, 300)
    assert (found.priority.max_age_s, found.priority_decay_half_life_s) == (7 * 86_400, 7 * 86_400)


def test_every_key_is_read() -> None:
    found = settings(
        "PriorityType=priority/multifactor",
        "PriorityDecayHalfLife=1-0",
        "PriorityCalcPeriod=1",
        "PriorityFavorSmall=YES",
        "PriorityFlags=accrue_always,SMALL_RELATIVE_TO_TIME",
        "PriorityMaxAge=1:00:00",
        "PriorityUsageResetPeriod=weekly",
        "PriorityWeightAge=1",
        "PriorityWeightAssoc=2",
        "PriorityWeightFairshare=3",
        "PriorityWeightJobSize=4",
        "PriorityWeightPartition=5",
        "PriorityWeightQOS=6",
        "PriorityWeightTRES=GRES/gpu=3000,CPU=1000,Mem=-0.5",
        "PriorityParameters=anything",
        "PrioritySiteFactorParameters=anything",
        "FairShareDampeningFactor=5",
    )
    assert found.priority == PrioritySettings(
        multifactor=True,
        calc_period_s=60,
        max_age_s=3600,
        favor_small=True,
        weight_age=1,
        weight_assoc=2,
        weight_fair_share=3,
        weight_job_size=4,
        weight_partition=5,
        weight_qos=6,
        weight_tres=(("cpu", 1000.0), ("mem", -0.5), ("gres/gpu", 3000.0)),
        parameters="anything",
        site_factor_parameters="anything",
    )
    assert (found.priority_decay_half_life_s, found.priority_usage_reset_period) == (86_400, "WEEKLY")
    assert found.priority_flags == ("ACCRUE_ALWAYS", "SMALL_RELATIVE_TO_TIME")
    assert found.fair_share_dampening_factor == 5


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("PriorityWeightAge=-5", "not below zero"),
        ("PriorityWeightQOS=1.5", "not a whole number"),
        ("PriorityWeightJobSize=5000000000", "at most 4294967295"),
        ("PriorityWeightTRES=CPU=x", "not a weight for CPU"),
        ("PriorityWeightTRES=CPU=nan", "not a weight for CPU"),
        ("PriorityWeightTRES=CPU", "not TRES=WEIGHT"),
        ("PriorityWeightTRES=foo=3", "not TRES=WEIGHT"),
        ("PriorityFlags=ACCRUE_ALWAYS,FOO", "'FOO' is no flag"),
        ("PriorityFavorSmall=maybe", "neither YES nor NO"),
        ("PriorityMaxAge=abc", "abc"),
        ("PriorityCalcPeriod=0", "above 0"),
        ("PriorityCalcPeriod=-1", "above 0"),
        ("PriorityUsageResetPeriod=hourly", "one of NONE, NOW, DAILY"),
        ("PriorityType=priority/foo", "priority/basic, priority/multifactor"),
        ("FairShareDampeningFactor=0", "above 0"),
    ],
)
def test_a_wrong_value_is_an_error_at_its_line(line: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings("", line)
    (found,) = caught.value.diagnostics
    assert found.place.line == 4
    assert line.partition("=")[0] in found.message
    assert complaint in found.message


def test_usage_that_only_grows_is_refused_with_multifactor_alone() -> None:
    assert settings("PriorityDecayHalfLife=0").priority_decay_half_life_s is None
    assert settings(
        "PriorityType=priority/multifactor", "PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=MONTHLY"
    ).priority.multifactor
    with pytest.raises(ConfigurationError, match="PriorityUsageResetPeriod"):
        settings("PriorityType=priority/multifactor", "PriorityDecayHalfLife=0")


def test_a_site_factor_plugin_is_said_not_to_be_applied() -> None:
    text = NODE + "PrioritySiteFactorPlugin=site_factor/ours\n"
    (warning,) = parse_configuration({"slurm.conf": text}).warnings
    assert (warning.place.line, "SiteFactor" in warning.message) == (3, True)
    none = NODE + "PrioritySiteFactorPlugin=site_factor/none\n"
    assert not parse_configuration({"slurm.conf": none}).warnings


# -- preemption ------------------------------------------------------------------------------------------------------

NODES = "NodeName=n1 CPUs=4\n"
BY_TIER = "PreemptType=preempt/partition_prio\n"


@pytest.mark.parametrize(
    ("words", "mode", "within"),
    [("REQUEUE", "REQUEUE", False), ("suspend,gang", "SUSPEND", False), ("CANCEL,WITHIN", "CANCEL", True)],
)
def test_preempt_modes(words: str, mode: str, within: bool) -> None:
    text = f"{BY_TIER}PreemptMode={words}\n{NODES}PartitionName=p Nodes=n1 OverSubscribe=FORCE:1"
    rules = parse_configuration({"slurm.conf": text}).cluster.settings.policy.preemption
    assert (rules.by, rules.mode, rules.within) == ("partition", mode, within)


@pytest.mark.parametrize(
    ("settings", "partition", "problem"),
    [
        ("PreemptMode=SUSPEND", "", "PreemptMode=SUSPEND requires GANG too"),
        ("PreemptMode=SUSPEND,CANCEL", "", "use OFF, CANCEL, REQUEUE or SUSPEND,GANG"),
        ("PreemptMode=SUSPEND,GANG", "OverSubscribe=FORCE:2", "asks for time slices"),
        ("PreemptMode=SUSPEND,GANG", "OverSubscribe=FORCE", "write OverSubscribe=FORCE:1"),
        ("PreemptMode=REQUEUE", "OverSubscribe=YES:3 PreemptMode=GANG", "partition p: OverSubscribe=YES:3"),
        ("PreemptMode=REQUEUE", "PreemptMode=SOMETIMES", "one of OFF, CANCEL, REQUEUE and SUSPEND, and GANG"),
    ],
)
def test_preemption_that_cannot_be_is_refused_at_load(settings: str, partition: str, problem: str) -> None:
    text = f"{BY_TIER}{settings}\n{NODES}PartitionName=p Nodes=n1 {partition}"
    with pytest.raises(ConfigurationError) as caught:
        parse_configuration({"slurm.conf": text})
    assert problem in str(caught.value)
