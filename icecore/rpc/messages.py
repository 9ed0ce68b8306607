"""Plain values to protobuf messages and back, field by field, as their type hints say.

A field of a dataclass and a field of a message that have the same name mean the same; ``is_x`` of a
value is ``x`` of a message. A field that only one side has is left alone: a value gets its default,
a message stays empty there. So a new field is two lines, one on each side, and no list of names
between them can miss it. Only the control plane uses this: records and batches have codecs.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import IntEnum
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

from icecore.errors import InvalidRequestError

T = TypeVar("T")
M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=IntEnum)

_Convert = Callable[[Any], Any]


def enum_of(kind: type[E], number: int) -> E:
    """The member with a number. Raises InvalidRequestError: this version knows none."""
    try:
        return kind(number)
    except ValueError as error:
        raise InvalidRequestError(f"{kind.__name__} has no number {number}") from error


def value_of(cls: type[T], message: Message, **given: Any) -> T:
    """The value of a message.

    Args:
        cls: A dataclass.
        message: Has its fields. An enum that a peer left unspecified gets the field's default.
        given: Fields that the message has in another form, or not at all.

    Raises:
        InvalidRequestError: The message has an enum number that this version does not know.
    """
    kind: Any = type(message)
    of: Any = cls
    form = _form(of, kind, frozenset(given))
    values = list(form.take(message))
    for at, name in form.optional:
        if not message.HasField(name):
            values[at] = None
    for at, read in form.readers:
        if values[at] is not None:
            values[at] = read(values[at])
    return cls(**dict(zip(form.names, values, strict=True)), **given)


def message_of(kind: type[M], value: object, **given: Any) -> M:
    """The message of a value, the other way round. ``given`` are fields of the message."""
    to: Any = kind
    cls: Any = type(value)
    said = {
        name: getattr(value, field) if write is None else write(getattr(value, field))
        for name, field, write in _writers(to, cls, frozenset(given))
    }
    return kind(**said, **given)


@dataclass(frozen=True, slots=True)
class _Form:
    """The plan by which a message has a value; made once for each pair of classes."""

    names: tuple[str, ...]
    """Fields of the value."""
    take: Callable[[Message], tuple[Any, ...]]
    """Their values in the message, in one call: segments are read a hundred thousand at a time."""
    readers: tuple[tuple[int, _Convert], ...]
    """(position, conversion) of each field that is another type in the message."""
    optional: tuple[tuple[int, str], ...]
    """(position, name in the message) of each field that may be None."""


@cache
def _shared(cls: Any, kind: Any, given: frozenset[str]) -> tuple[tuple[str, str, Any], ...]:
    """(name in the message, field of the value, hint) of each field that both have."""
    there, hints = kind.DESCRIPTOR.fields_by_name, get_type_hints(cls)
    names = ((each.name.removeprefix("is_"), each.name) for each in fields(cls))
    return tuple(
        (name, field, hints[field])
        for name, field in names
        if name in there and name not in given and field not in given
    )


@cache
def _form(cls: Any, kind: Any, given: frozenset[str]) -> _Form:
    shared = _shared(cls, kind, given)
    defaults = {each.name: each.default for each in fields(cls)}
    readers = [_reader(_inner(hint), defaults[field]) for _, field, hint in shared]
    names = [name for name, _, _ in shared]
    return _Form(
        names=tuple(field for _, field, _ in shared),
        take=attrgetter(*names) if len(names) > 1 else lambda message: (getattr(message, *names),),
        readers=tuple((at, read) for at, read in enumerate(readers) if read is not None),
        optional=tuple((at, name) for at, (name, _, hint) in enumerate(shared) if _is_none(hint)),
    )


@cache
def _writers(
    kind: Any, cls: Any, given: frozenset[str]
) -> tuple[tuple[str, str, _Convert | None], ...]:
    there = kind.DESCRIPTOR.fields_by_name
    return tuple(
        (name, field, _writer(_inner(hint), there[name].message_type))
        for name, field, hint in _shared(cls, kind, given)
    )


def _is_none(hint: Any) -> bool:
    return NoneType in get_args(hint)


def _inner(hint: Any) -> Any:
    """``X`` of ``X | None``, else the hint itself."""
    return next(each for each in get_args(hint) if each is not NoneType) if _is_none(hint) else hint


def _reader(hint: Any, default: Any = MISSING) -> _Convert | None:
    """The conversion of a field's value in a message; None = it stays as it is."""
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(value_of, hint)
    if get_origin(hint) is tuple:
        each = get_args(hint)[0]
        return _tuple_of(each) if is_dataclass(each) else tuple
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        usual = 0 if default is MISSING else default
        return lambda number: enum_of(hint, number or usual)
    return None


def _tuple_of(cls: Any) -> _Convert:
    return lambda messages: tuple(value_of(cls, each) for each in messages)


def _writer(hint: Any, described: Any) -> _Convert | None:
    """The conversion of a field for a message, which ``described`` describes if it holds others."""
    if described is None:
        return None
    kind = described._concrete_class
    if get_origin(hint) is tuple:
        return lambda values: [message_of(kind, each) for each in values]
    return lambda value: None if value is None else message_of(kind, value)
