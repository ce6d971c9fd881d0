"""Node features a job insists on, as a tree. How it is written (`a&(b|c)*2`) is `slurm/constraints.py`'s matter.

Counted and "all of one kind" forms (`a*2`, `[a|b]`) are kept for the planner; `matches` answers for one node.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum


class Operator(StrEnum):
    AND = "&"
    OR = "|"
    MATCHING_OR = "[|]"  # one alternative, the same on all nodes
    XAND = "[&]"  # so many nodes of each counted part


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    count: int | None = None
    """How many nodes must have it (`rack1*2`)."""


@dataclass(frozen=True, slots=True)
class FeatureExpression:
    operator: Operator
    parts: tuple[Feature | FeatureExpression, ...]
    count: int | None = None

    def matches(self, features: Collection[str]) -> bool:
        """Whether a node with these features may be part of the job at all."""
        answers = (
            part.name in features if isinstance(part, Feature) else part.matches(features) for part in self.parts
        )
        if self.operator is Operator.AND and not self.counted:
            return all(answers)
        return any(answers) or not self.parts

    @property
    def counted(self) -> bool:
        return any(part.count is not None for part in self.parts)

    def alternatives(self) -> tuple[FeatureExpression, ...]:
        """For a matching OR: each choice that all nodes together may take. Else the expression itself."""
        if self.operator is not Operator.MATCHING_OR:
            return (self,)
        return tuple(
            FeatureExpression(Operator.AND, (part,)) if isinstance(part, Feature) else part for part in self.parts
        )


ANY_FEATURES = FeatureExpression(Operator.AND, ())
