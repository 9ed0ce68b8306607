"""Short texts of values, as a person reads them in a notebook or a log.

A value of ours may hold megabytes, or thousands of others. Its ``repr`` says what it is, in a line.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, Final, TypeVar

_Class = TypeVar("_Class", bound=type)

_LENGTH_MAX: Final = 60
"""Characters and bytes that are shown of one text."""
_ITEMS_MAX: Final = 5
"""More items than these are counted."""
_ID_BYTES: Final = 16


def short_repr(*left_out: str) -> Callable[[_Class], _Class]:
    """Give a dataclass a ``repr`` of one line.

    Args:
        left_out: Fields that are not shown, besides those that have their default.
    """

    def give(cls: _Class) -> _Class:
        def text(self: Any) -> str:
            said = [
                f"{each.name}={_short(each.name, getattr(self, each.name))}"
                for each in fields(self)
                if each.name not in left_out and not _is_default(each, getattr(self, each.name))
            ]
            return f"{type(self).__name__}({', '.join(said)})"

        cls.__repr__ = text  # type: ignore[assignment]
        return cls

    return give


def _is_default(field: "Field[Any]", value: Any) -> bool:
    return (
        field.default is not MISSING
        and type(value) is type(field.default)
        and (value == field.default)
    )


def _short(name: str, value: Any) -> str:
    if isinstance(value, bytes) and name.endswith("_id") and len(value) == _ID_BYTES:
        return repr(value.hex())  # as commands print it
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str | bytes):
        if len(value) <= _LENGTH_MAX:
            return repr(value)
        unit = "bytes" if isinstance(value, bytes) else "characters"
        return f"<{value[:_LENGTH_MAX]!r} and more: {len(value)} {unit}>"
    if isinstance(value, Mapping):
        return repr(value) if len(value) <= _ITEMS_MAX else f"<{len(value)} entries>"
    if isinstance(value, Collection):
        return _counted(value)
    return repr(value)


def _counted(values: Collection[Any]) -> str:
    first = next(iter(values), None)
    if is_dataclass(first):
        return f"<{len(values)} {type(first).__name__}>"
    if len(values) > _ITEMS_MAX:
        return f"<{len(values)} items>"
    texts = ", ".join(_short("", each) for each in values)
    return f"({texts},)" if len(values) == 1 else f"({texts})"
