"""Records of the metadata store as readable JSON: bytes in hex, enums by name.

A start reads every record, so what a field becomes is looked up once for each class, and small
values that very many records share (settings, ids, sets of nodes) are one object for all of them.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache, lru_cache, partial
from sys import intern
from typing import Any, NewType, TypeVar, get_args, get_origin, get_type_hints

from icecore.errors import InternalError

T = TypeVar("T")

_SHARED_MAX = 4096
"""Values of a kind that are remembered, to be given out again."""
_SHARED_HEX_MAX = 32
"""Topic ids are as short; digests are longer, and never the same twice."""


def encode(record: object) -> str:
    """The stored form: JSON with bytes in hex and enums by name."""
    return json.dumps(_plain(record), separators=(",", ":"))


def decode(cls: type[T], text: str) -> T:
    """The record of a stored form. Raises InternalError when it is none."""
    try:
        return _record(cls, json.loads(text))  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(f"metadata record {text[:200]!r} is damaged: {error}") from error


def _plain(value: Any) -> dict[str, Any]:
    cls: Any = type(value)
    return {
        name: getattr(value, name) if convert is None else convert(getattr(value, name))
        for name, convert in _converters(cls)
    }


@cache
def _converters(cls: Any) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """How each field becomes JSON; None = as it is. Looked up once, for it is asked very often."""
    found: list[tuple[str, Callable[[Any], Any] | None]] = []
    for name, hint in _hints(cls):
        if is_dataclass(hint):
            found.append((name, _plain))
        elif hint is bytes:
            found.append((name, bytes.hex))
        elif get_origin(hint) is tuple and is_dataclass(get_args(hint)[0]):
            found.append((name, _plain_of_each))
        elif hint == tuple[bytes, ...]:
            found.append((name, _hex_of_each))
        elif isinstance(hint, type) and issubclass(hint, IntEnum):
            found.append((name, _name_of))
        else:
            found.append((name, None))
    return found


def _plain_of_each(values: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [_plain(each) for each in values]


def _hex_of_each(values: tuple[bytes, ...]) -> list[str]:
    return [each.hex() for each in values]


def _name_of(value: IntEnum) -> str:
    return value.name


@cache
def _hints(cls: type[Any]) -> list[tuple[str, Any]]:
    hints = get_type_hints(cls)
    return [(each.name, hints[each.name]) for each in fields(cls)]


def _record(cls: Any, value: dict[str, Any]) -> Any:
    found = {}
    for name, read in _readers(cls):
        if name in value:
            found[name] = read(value[name])
    return cls(**found)


@cache
def _readers(cls: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """What makes each field of what JSON has for it."""
    return [(name, _reader(hint)) for name, hint in _hints(cls)]


def _reader(hint: Any) -> Callable[[Any], Any]:
    if is_dataclass(hint):
        is_leaf = not any(is_dataclass(of) for _, of in _hints(hint))  # type: ignore[arg-type]
        return partial(_shared_part if is_leaf else _record, hint)
    if get_origin(hint) is tuple:
        each, *more = get_args(hint)
        read = partial(_tuple_of, _reader(each))
        is_set_of_ids = isinstance(each, NewType) and more == [...]
        return (lambda values: _shared(read(values))) if is_set_of_ids else read
    if isinstance(hint, NewType):  # an id is stored as the number that it is
        hint = hint.__supertype__
    if hint is bytes:
        return _bytes_of
    return hint.__getitem__ if issubclass(hint, IntEnum) else partial(_plain_value, hint)


def _tuple_of(read: Callable[[Any], Any], values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(read, values))


def _plain_value(cls: Any, value: Any) -> Any:
    if type(value) is not cls:
        value = cls(value)
    return intern(value) if cls is str else value


def _bytes_of(value: str) -> bytes:
    return _short_bytes_of(value) if len(value) <= _SHARED_HEX_MAX else bytes.fromhex(value)


@lru_cache(_SHARED_MAX)
def _short_bytes_of(value: str) -> bytes:
    return bytes.fromhex(value)


@lru_cache(_SHARED_MAX)
def _shared(value: T) -> T:
    """The first one that was equal to it."""
    return value


def _shared_part(cls: Any, value: dict[str, Any]) -> Any:
    """A record within a record: whoever has the same values in it gets the same object."""
    named = dict(value)
    values = tuple(tuple(each) if isinstance(each, list) else each for each in named.values())
    return _part(cls, tuple(named), values)


@lru_cache(_SHARED_MAX)
def _part(cls: Any, names: Sequence[str], values: Sequence[Any]) -> Any:
    return _record(cls, dict(zip(names, values, strict=True)))
