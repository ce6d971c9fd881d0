"""Dataclasses of the model -> dictionaries, lists and scalars: the writing half of `store/codec.py`.

On its own and light, because `sbatch` needs it on every start: the specification it sends is written like this too.
Only what differs from a field's default is written, and the class name wherever a hint allows several classes.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import deque
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

TAG = "_"
"""Key of the class name, where a hint is a union of dataclasses."""
NO_DEFAULT = object()


@dataclasses.dataclass(frozen=True, slots=True)
class _WritePlan:
    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    defaults: tuple[Any, ...]
    nested: tuple[str, ...]
    tagged: frozenset[str]


_write_plans: dict[type, _WritePlan] = {}
_part_plans: dict[tuple[type, tuple[str, ...]], _WritePlan] = {}
"""As `_write_plans`, without the fields of these names."""


def to_plain(value: Any, without: tuple[str, ...] = ()) -> Any:
    """Dictionaries, lists and scalars that msgspec can write: no field that has its default, none of `without`."""
    if type(value) in _write_plans or dataclasses.is_dataclass(value):
        return _plain_fields(value, without)
    return _plain_nested(value, False)


def _plain_fields(value: Any, without: tuple[str, ...] = ()) -> dict[str, Any]:
    cls = type(value)
    plan = _part_plans.get((cls, without)) if without else _write_plans.get(cls)
    if plan is None:
        plan = _plan_writing(cls, without)
    fields = zip(plan.names, plan.values(value), plan.defaults)
    plain = {name: field for name, field, default in fields if field is not default and field != default}
    for name in plan.nested:
        if name in plain:
            plain[name] = _plain_nested(plain[name], name in plan.tagged)
    return plain


def _plain_nested(value: Any, tagged: bool) -> Any:
    if type(value) in _write_plans or dataclasses.is_dataclass(value):
        plain = _plain_fields(value)
        if tagged:
            plain[TAG] = type(value).__name__
        return plain
    if isinstance(value, (tuple, list, deque, frozenset, set)):
        return [_plain_nested(item, tagged) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain_nested(item, tagged) for key, item in value.items()}
    return value


def _plan_writing(cls: type, without: tuple[str, ...] = ()) -> _WritePlan:
    hints = typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.name not in without]
    names = tuple(field.name for field in fields)
    getter = attrgetter(*names) if len(names) > 1 else None
    plan = _WritePlan(
        names=names,
        values=getter or (lambda value: tuple(getattr(value, name) for name in names)),
        defaults=tuple(default_of(field) for field in fields),
        nested=tuple(name for name in names if not _is_flat(hints[name])),
        tagged=frozenset(name for name in names if _has_tagged_union(hints[name])),
    )
    if without:
        _part_plans[cls, without] = plan
    else:
        _write_plans[cls] = plan
    return plan


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return NO_DEFAULT


def _is_flat(hint: Any) -> bool:
    """Whether msgspec writes values of this hint by itself, as they should be written."""
    if dataclasses.is_dataclass(hint) or typing.get_origin(hint) in (deque, dict, Mapping) or hint is Any:
        return False
    return all(_is_flat(part) for part in typing.get_args(hint))


def _has_tagged_union(hint: Any) -> bool:
    return len(classes_of(hint)) > 1 or any(_has_tagged_union(part) for part in typing.get_args(hint))


def classes_of(hint: Any) -> list[type]:
    """The dataclasses a union hint allows."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return []
    return [part for part in typing.get_args(hint) if dataclasses.is_dataclass(part)]  # type: ignore[misc]
