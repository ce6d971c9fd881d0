"""The model's dataclasses <-> JSON, driven by their type hints.

Written out: only what differs from a field's default (a job's specification has ninety fields, of which a script
sets five), and the class name wherever a hint allows several classes. So a class or field added to `core/model`
needs nothing here, but a changed default changes what old journals mean. msgspec parses and prints; it cannot build
the classes itself, because it refuses unions of dataclasses (a job's phase, its array, features).
Two ways to read: `decode` trusts our own journal; `convert` checks everything and names the wrong field, for what
came over the API. Invariant: `decode(encode(x)) == x` for every value of the model.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

import msgspec

from bireme.store.plain import NO_DEFAULT, TAG, classes_of, default_of, to_plain

T = TypeVar("T")
Read = Callable[[Any], Any]


class WrongShapeError(ValueError):
    """A value does not have the type its hint promises. `path` names the field, as `resources.nodes_min`."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem

    def within(self, name: str) -> WrongShapeError:
        path = f"{name}.{self.path}" if self.path and not self.path.startswith("[") else name + self.path
        return WrongShapeError(path, self.problem)


def encode(value: Any) -> bytes:
    """JSON of a dataclass of the model (or of a plain value that holds some)."""
    return dumps(to_plain(value))


def decode(cls: type[T], data: bytes) -> T:
    """The inverse of `encode`. Trusts the data: anything odd raises a ValueError, TypeError or KeyError."""
    return typing.cast(T, _reader(cls, False)(loads(data)))


def from_plain(cls: type[T], value: dict[str, Any], **ready: Any) -> T:
    """As `decode`, from parsed JSON (which is used up) and from fields that were already read."""
    for name, read in _laborious_fields(typing.cast(type, cls)):
        if name in value:
            value[name] = read(value[name])
    return typing.cast(T, _make(cls, value | ready))


def read(hint: Any, value: Any) -> Any:
    """As `decode`, from parsed JSON (which is used up), of whatever the hint says: `dict[str, Node]`."""
    return _reader(hint, False)(value)


def convert(cls: type[T], value: Any) -> T:
    """A checked `cls` from parsed JSON of unknown origin; raises WrongShapeError naming the field."""
    return typing.cast(T, _reader(cls, True)(value))


def all_fields(value: Any) -> dict[str, Any]:
    """Every field of a dataclass, defaults too, for people and tools to read. Cannot be decoded."""
    return typing.cast("dict[str, Any]", msgspec.to_builtins(value))


def convert_field(cls: type, name: str, value: Any) -> Any:
    """A checked value for one field of `cls`; raises WrongShapeError naming it."""
    try:
        return _reader(typing.get_type_hints(cls)[name], True)(value)
    except WrongShapeError as error:
        raise error.within(name) from None


def dumps(plain: Any) -> bytes:
    try:
        return msgspec.json.encode(plain)
    except UnicodeEncodeError:
        # Paths and arguments may hold bytes that are not UTF-8 (lone surrogates): only escapes can carry them.
        return json.dumps(plain, separators=(",", ":"), default=list).encode("ascii")


def loads(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(data)


def loads_foreign(data: bytes) -> Any:
    """As `loads`, of what strangers sent: a ValueError too for text that no file, name or terminal can have.

    Lone surrogates are bytes that are not UTF-8 (U+DC80 to U+DCFF, as Python reads them), or nothing at all.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = json.loads(data)
    # Only the parser of the standard library lets them pass.
    if found := _NO_TEXT.search(json.dumps(content, ensure_ascii=False)):
        raise ValueError(f"text holds {ascii(found[0])[1:-1]}, which is half a character")
    return content


_NO_TEXT = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_SCALARS: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (float, int),
    bool: (bool,),
    types.NoneType: (types.NoneType,),
}
_PLAIN_HINTS: tuple[Any, ...] = (
    *_SCALARS, Any, str | None, int | None, float | None, bool | None, str | int | float
)  # fmt: skip
_readers: dict[tuple[Any, bool], Read] = {}


def _reader(hint: Any, strict: bool) -> Read:
    key = (hint, strict)
    if key not in _readers:
        _readers[key] = lambda value: _readers[key](value)  # a class may contain itself
        _readers[key] = _build_reader(hint, strict)
    return _readers[key]


def _build_reader(hint: Any, strict: bool) -> Read:
    if dataclasses.is_dataclass(hint):
        return _class_reader(typing.cast(type, hint), strict)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union_reader(hint, strict)
    if origin is tuple:
        return _tuple_reader(arguments, strict)
    if origin in (list, frozenset, set, deque):
        item = _items_reader(_reader(arguments[0], strict), strict)
        return lambda value: origin(item(value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_reader(arguments[0], _reader(arguments[1], strict), strict)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_reader(hint)
    if hint is Any or hint in _SCALARS:
        return _checked_scalar(_SCALARS[hint]) if strict and hint is not Any else _as_is
    return functools.partial(_unreadable, hint)


def _unreadable(hint: Any, value: Any) -> Any:
    # Only now: State has indexes of such types, which are never written.
    raise TypeError(f"the codec cannot read a {hint!r} from {value!r}")


def _as_is(value: Any) -> Any:
    return value


def _checked_scalar(allowed: tuple[type, ...]) -> Read:
    expected = " or ".join(_word(kind) for kind in allowed[:1])

    def read(value: Any) -> Any:
        if type(value) not in allowed:
            raise WrongShapeError("", f"expected {expected}, got {_word(type(value))}")
        return value

    return read


def _word(kind: type) -> str:
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object"}
    return {**words, list: "a list", types.NoneType: "null"}.get(kind, kind.__name__)


def _enum_reader(hint: type[Enum]) -> Read:
    members = {member.value: member for member in hint}

    def read(value: Any) -> Any:
        try:
            return members[value]
        except (KeyError, TypeError):
            raise WrongShapeError("", f"{value!r} is none of {', '.join(map(str, members))}") from None

    return read


def _union_reader(hint: Any, strict: bool) -> Read:
    parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
    nullable = len(parts) < len(typing.get_args(hint))
    if len(parts) == 1:
        one = _reader(parts[0], strict)
    elif all(part in _SCALARS for part in parts):
        allowed = tuple(kind for part in parts for kind in _SCALARS[part])
        one = _checked_scalar(allowed) if strict else _as_is
    elif len(classes_of(hint)) == len(parts):
        one = _tagged_reader(typing.cast("list[type]", parts), strict)
    else:
        raise TypeError(f"the codec cannot tell the parts of {hint!r} apart")
    if not nullable:
        return one
    return lambda value: None if value is None else one(value)


def _tagged_reader(classes: list[type], strict: bool) -> Read:
    readers = {cls.__name__: _reader(cls, strict) for cls in classes}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise WrongShapeError("", f"expected an object, got {_word(type(value))}")
        fields = dict(value)
        name = fields.pop(TAG, None) or _fitting(classes, fields)
        if name not in readers:
            raise WrongShapeError("", f"expected an object whose {TAG!r} is one of {', '.join(readers)}")
        return readers[name](fields)

    return read


def _fitting(classes: list[type], fields: dict[str, Any]) -> str | None:
    """The class whose fields these can only be: people who write JSON by hand need not say the obvious."""
    for cls in classes:
        known = {field.name: default_of(field) is NO_DEFAULT for field in dataclasses.fields(cls)}
        required = {name for name, needed in known.items() if needed}
        if required <= fields.keys() <= known.keys():
            return cls.__name__
    return None


def _tuple_reader(arguments: tuple[Any, ...], strict: bool) -> Read:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        items = _items_reader(_reader(arguments[0], strict), strict)
        return lambda value: tuple(items(value))
    readers = [_reader(argument, strict) for argument in arguments]

    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise WrongShapeError("", f"expected a list of {len(readers)}")
        return tuple([one(item) for one, item in zip(readers, value)])

    return read


def _items_reader(one: Read, strict: bool) -> Read:
    def read(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise WrongShapeError("", f"expected a list, got {_word(type(value))}")
        if one is _as_is:
            return value
        if not strict:
            return [one(item) for item in value]
        items = []
        for index, item in enumerate(value):
            try:
                items.append(one(item))
            except WrongShapeError as error:
                raise error.within(f"[{index}]") from None
        return items

    return read


def _mapping_reader(key_hint: Any, one: Read, strict: bool) -> Read:
    key: Callable[[str], Any] = int if key_hint is int else str

    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise WrongShapeError("", f"expected an object, got {_word(type(value))}")
        result = {}
        for name, item in value.items():
            try:
                result[key(name)] = one(item)
            except WrongShapeError as error:
                raise error.within(name) from None
        return result

    return read


def _class_reader(cls: type, strict: bool) -> Read:
    if strict:
        hints = typing.get_type_hints(cls)
        readers = {field.name: _reader(hints[field.name], True) for field in dataclasses.fields(cls)}
        required = [field.name for field in dataclasses.fields(cls) if default_of(field) is NO_DEFAULT]
        return _strict_class_reader(cls, readers, required)
    laborious = _laborious_fields(cls)

    def read(value: Any) -> Any:
        for name, one in laborious:
            if name in value:
                value[name] = one(value[name])
        return _make(cls, value)

    return read


@functools.cache
def _laborious_fields(cls: type) -> tuple[tuple[str, Read], ...]:
    """The fields that need work when they are there; scalars are what they are."""
    hints = typing.get_type_hints(cls)
    readers = ((field.name, hints[field.name]) for field in dataclasses.fields(cls))
    return tuple((name, _reader(hint, False)) for name, hint in readers if hint not in _PLAIN_HINTS)


def _make(cls: type, fields: dict[str, Any]) -> Any:
    try:
        return cls(**fields)
    except TypeError:
        # A later version of Bireme wrote fields that this one does not have.
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in fields.items() if name in known})


def _strict_class_reader(cls: type, readers: dict[str, Read], required: list[str]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise WrongShapeError("", f"expected an object, got {_word(type(value))}")
        fields = {}
        for name, item in value.items():
            if name not in readers:
                raise WrongShapeError(name, f"{cls.__name__} has no such field")
            try:
                fields[name] = readers[name](item)
            except WrongShapeError as error:
                raise error.within(name) from None
        for name in required:
            if name not in fields:
                raise WrongShapeError(name, "is missing")
        return cls(**fields)

    return read
