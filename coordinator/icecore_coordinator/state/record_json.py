"""Records of the metadata store as readable JSON: bytes in hex, enums by name."""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any, NewType, TypeVar, get_args, get_origin, get_type_hints

from icecore.errors import InternalError

T = TypeVar("T")


def encode(record: object) -> str:
    """The stored form: JSON with bytes in hex and enums by name."""
    return json.dumps(_plain(record), separators=(",", ":"))


def decode(cls: type[T], text: str) -> T:
    """The record of a stored form. Raises InternalError when it is none."""
    try:
        return _typed(cls, json.loads(text))  # type: ignore[no-any-return]
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
        elif hint == tuple[bytes, ...]:
            found.append((name, _hex_of_each))
        elif isinstance(hint, type) and issubclass(hint, IntEnum):
            found.append((name, _name_of))
        else:
            found.append((name, None))
    return found


def _hex_of_each(values: tuple[bytes, ...]) -> list[str]:
    return [each.hex() for each in values]


def _name_of(value: IntEnum) -> str:
    return value.name


@cache
def _hints(cls: type[Any]) -> list[tuple[str, Any]]:
    hints = get_type_hints(cls)
    return [(each.name, hints[each.name]) for each in fields(cls)]


def _typed(hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        known = [(name, of) for name, of in _hints(hint) if name in value]  # type: ignore[arg-type]
        return hint(**{name: _typed(of, value[name]) for name, of in known})  # type: ignore[operator]
    if get_origin(hint) is tuple:
        return tuple(_typed(get_args(hint)[0], each) for each in value)
    if isinstance(hint, NewType):  # an id is stored as the number that it is
        hint = hint.__supertype__
    if hint is bytes:
        return bytes.fromhex(value)
    return hint[value] if issubclass(hint, IntEnum) else hint(value)
