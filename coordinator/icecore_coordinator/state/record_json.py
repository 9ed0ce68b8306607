"""Records of the metadata store as readable JSON: bytes in hex, enums by name.

A start reads every record, so what a field becomes is looked up once for each class, and small
values that very many records share (settings, ids, sets of nodes) are one object for all of them.
What is empty is left out, where a record that lacks it gets just that: a third of a segment's row.
"""

import json
import marshal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache, lru_cache, partial
from operator import itemgetter
from sys import intern
from typing import Any, NewType, TypeVar, get_args, get_origin, get_type_hints

from icecore.errors import InternalError
from icecore.model import Epoch

T = TypeVar("T")

_SHARED_MAX = 4096
"""Values of a kind that are remembered, to be given out again."""
_SHARED_NUMBERS_MAX = 16_384
"""A segment begins where the one before it in its partition ends, and many have the same epoch."""
_SHARED_HEX_MAX = 32
"""Topic ids are as short; digests are longer, and never the same twice."""
_STORED_NAMES = {"min_insync_replicas": "min_insync"}
"""Stored names of fields that were renamed: stores and buckets written before stay readable."""
_raw = json.JSONDecoder().raw_decode
"""The parser of ``json.loads`` without its search for spaces, which ``encode`` leaves out."""
_MARSHAL_WITHOUT_REFERENCES = 2
"""Later forms say which strings are the same object, so equal values would have other bytes."""


def encode(record: object) -> str:
    """The stored form: JSON with bytes in hex and enums by name."""
    return json.dumps(_plain(record), separators=(",", ":"))


def decode(cls: type[T], text: str) -> T:
    """The record of a stored form. Raises InternalError when it is none."""
    try:
        value, end = _raw(text)
        if end != len(text):
            raise ValueError(f"something follows at {end}")
        return _record(cls, value)  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(f"metadata record {text[:200]!r} is damaged: {error}") from error


def _plain(value: Any) -> dict[str, Any]:
    cls: Any = type(value)
    empties = _empties(cls)
    plain = {}
    for name, convert in _converters(cls):
        found = getattr(value, name)
        if found or name not in empties:
            stored = found if convert is None else convert(found)
            plain[_STORED_NAMES.get(name, name)] = stored
    return plain


@cache
def _empties(cls: Any) -> dict[str, Any]:
    """Fields that are empty unless they are said, and the JSON of that. A default that says
    something is always stored: it may be another one some day."""
    stored = {name: _stored_type(hint) for name, hint in _hints(cls)}
    plain = (bool, bytes, int, str, tuple)
    return {
        each.name: stored[each.name]()
        for each in fields(cls)
        if type(each.default) in plain and not each.default
    }


@cache
def _converters(cls: Any) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """Return how each field becomes JSON; None = as it is. Looked up once, for it is asked very
    often.
    """
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


@dataclass(frozen=True, slots=True)
class _Form:
    """The form that JSON gives a record: all fields that this version knows, but for empty ones."""

    take: Callable[[dict[str, Any]], tuple[Any, ...]]
    """Their values in the order of the fields. Raises KeyError."""
    empties: dict[str, Any]
    """JSON of what may be left out."""
    types: tuple[type, ...]
    """JSON types of these values, in the same order."""
    readers: tuple[tuple[int, Callable[[Any], Any]], ...]
    """(position, what makes the field of its value) of each field that is other than its value."""


def _record(cls: Any, value: dict[str, Any]) -> Any:
    form = _form(cls)
    try:
        values = form.take({**form.empties, **value})
    except KeyError:
        return _older_record(cls, value)
    if tuple(map(type, values)) != form.types:
        raise TypeError(f"a value of {cls.__name__} has another type")
    found = list(values)
    for at, read in form.readers:
        found[at] = read(found[at])
    return cls(*found)


def _older_record(cls: Any, value: dict[str, Any]) -> Any:
    """Decode a record of an older version: fields that it lacks get their defaults."""
    found = {}
    for name, hint in _hints(cls):
        stored = _STORED_NAMES.get(name, name)
        if stored in value:
            _check_type(value[stored], _stored_type(hint))
            found[name] = _reader(hint)(value[stored])
    return cls(**found)


@cache
def _form(cls: Any) -> _Form:
    names = [_STORED_NAMES.get(name, name) for name, _ in _hints(cls)]
    readers = [_reader(hint) for _, hint in _hints(cls)]
    return _Form(
        itemgetter(*names),
        {_STORED_NAMES.get(name, name): empty for name, empty in _empties(cls).items()},
        tuple(_stored_type(hint) for _, hint in _hints(cls)),
        tuple((at, read) for at, read in enumerate(readers) if read is not _as_it_is),
    )


def _stored_type(hint: Any) -> type:
    """The type that JSON has for a field."""
    if is_dataclass(hint):
        return dict
    if get_origin(hint) is tuple:
        return list
    if isinstance(hint, NewType):  # an id is stored as the number that it is
        hint = hint.__supertype__
    stored: type = str if hint is bytes or issubclass(hint, IntEnum) else hint
    return stored


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that makes a field of its JSON value."""
    if is_dataclass(hint):
        is_leaf = not any(is_dataclass(of) for _, of in _hints(hint))  # type: ignore[arg-type]
        return partial(_shared_part if is_leaf else _record, hint)
    if get_origin(hint) is tuple:
        return _tuple_reader(*get_args(hint))
    if hint is str:
        return intern
    if hint is bytes:
        return _bytes_of
    if hint in (int, Epoch):
        return _shared_number
    is_enum = isinstance(hint, type) and issubclass(hint, IntEnum)
    return hint.__getitem__ if is_enum else _as_it_is


def _tuple_reader(each: Any, *more: Any) -> Callable[[Any], Any]:
    stored, read = _stored_type(each), _reader(each)
    if isinstance(each, NewType) and more == (...,):
        return partial(_ids, stored)
    return partial(_tuple_of, stored, read)


def _tuple_of(stored: type, read: Callable[[Any], Any], values: Sequence[Any]) -> tuple[Any, ...]:
    for value in values:
        _check_type(value, stored)
    return tuple(map(read, values))


def _ids(stored: type, values: Sequence[Any]) -> tuple[Any, ...]:
    """Ids: very many records have the same few, or none."""
    return _shared_ids(stored, tuple(values)) if values else ()


@lru_cache(_SHARED_MAX)
def _shared_ids(stored: type, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return _tuple_of(stored, _as_it_is, values)


def _check_type(value: Any, stored: type) -> None:
    if type(value) is not stored:
        raise TypeError(f"{value!r} is no {stored.__name__}")


@lru_cache(_SHARED_NUMBERS_MAX)
def _shared_number(value: int) -> int:
    return value


def _as_it_is(value: T) -> T:
    return value


def _bytes_of(value: str) -> bytes:
    return _short_bytes_of(value) if len(value) <= _SHARED_HEX_MAX else bytes.fromhex(value)


@lru_cache(_SHARED_MAX)
def _short_bytes_of(value: str) -> bytes:
    return bytes.fromhex(value)


def _shared_part(cls: Any, value: dict[str, Any]) -> Any:
    """A record within a record: whoever has the same values in it gets the same object."""
    return _part(cls, marshal.dumps(value, _MARSHAL_WITHOUT_REFERENCES))


@lru_cache(_SHARED_MAX)
def _part(cls: Any, packed: bytes) -> Any:
    return _record(cls, marshal.loads(packed))
