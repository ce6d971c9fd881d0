"""`--constraint` and `--prefer` as the options read them: the tree of `core/placement/features.py`, Slurm's error."""

from bireme.core.placement.features import AllOf as AllOf
from bireme.core.placement.features import AnyOf as AnyOf
from bireme.core.placement.features import Constraint as Constraint
from bireme.core.placement.features import Expression as Expression
from bireme.core.placement.features import Feature as Feature
from bireme.core.placement.features import FeatureError
from bireme.core.placement.features import OneForAll as OneForAll
from bireme.core.placement.features import Shares as Shares
from bireme.core.placement.features import expression_matches as expression_matches
from bireme.core.placement.features import parse_constraint as _parse
from bireme.slurm.errors import SlurmSyntaxError


def parse_constraint(text: str) -> Constraint:
    """The value of `--constraint` or `--prefer`. Empty text asks for nothing."""
    try:
        return _parse(text)
    except FeatureError as error:
        raise SlurmSyntaxError(str(error)) from None
