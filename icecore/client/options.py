"""Options of a client that both its classes take: one TypedDict names them, with their defaults.

``Annotated[float, Default(5)]`` is the type of an option and its default. Its text stands under
``Args`` in the docstring of the TypedDict.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, TypeVar, cast, get_type_hints

_Options = TypeVar("_Options")
_Class = TypeVar("_Class", bound=type)

_NEAR = 0.5
"""Names less alike than this are no typing mistakes."""


@dataclass(frozen=True, slots=True)
class Default:
    """The value of an option that is not given."""

    value: Any


@cache
def _parameters(kind: Any) -> Mapping[str, inspect.Parameter]:
    """Return the options as keyword parameters."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        [default] = hint.__metadata__
        found[name] = inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default.value,
            annotation=hint.__origin__,
        )
    return found


def takes(kind: type) -> Callable[[_Class], _Class]:
    """Decorate a class whose constructor takes these options.

    The signature of the constructor and the docstring of the class then spell them out, so that
    ``help`` shows them. The docstring has the line ``options:`` in their place.
    """

    def spell(cls: _Class) -> _Class:
        constructor: Any = cls.__init__  # type: ignore[misc]
        shown = inspect.signature(constructor)
        own = [each for each in shown.parameters.values() if each.kind is not each.VAR_KEYWORD]
        first = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        constructor.__signature__ = shown.replace(
            parameters=[*first, *_parameters(kind).values(), *own[len(first) :]]
        )
        if cls.__doc__ and kind.__doc__:
            cls.__doc__ = _spelled(inspect.cleandoc(cls.__doc__), inspect.cleandoc(kind.__doc__))
        return cls

    return spell


def _spelled(doc: str, options: str) -> str:
    """Put what the docstring of the options says under ``Args`` in the place of ``options:``."""
    texts = options.partition("Args:\n")[2].partition("\n\n")[0]
    lines = [texts if each.startswith("    options: ") else each for each in doc.splitlines()]
    return "\n".join(lines)


def stays(client: object) -> TypeError:
    """The error of who pickles or copies a client, as pools of processes and Spark do with what a
    function refers to."""
    name = type(client).__name__
    return TypeError(
        f"a {name} can't be pickled or copied: its threads and connections belong to this process. "
        f"Make a {name} where it is used, in each process, worker or task"
    )


def filled(cls: type, kind: type[_Options], given: _Options) -> _Options:
    """Return all options of a class: the given ones, and the defaults of the others.

    Raises:
        TypeError: There is no option of a given name.
    """
    known, chosen = _parameters(cast("Any", kind)), cast("dict[str, Any]", given)
    for name in chosen:
        if name not in known:
            raise TypeError(_unknown(cls, name))
    defaults = {name: each.default for name, each in known.items()}
    return cast("_Options", defaults | chosen)


_ELSEWHERE: Final = {
    "group": "there are no consumer groups yet: give each process its own partitions=",
    "bootstrap_servers": "the address is the first argument",
    "auto_offset_reset": "start= says where to begin",
    "enable_auto_commit": "position= is a name under which positions are saved",
    "consumer_timeout_ms": "stop_at_end=True ends at the end",
    "value_serializer": "values are bytes: encode them before",
    "value_deserializer": "values are bytes: decode them",
}
"""Names that other products have, and what there is in their place."""


def _unknown(cls: type, name: str) -> str:
    for known, instead in _ELSEWHERE.items():
        if name.startswith(known) or (known == "group" and name == "consumer_group"):
            return f"{cls.__name__}() has no {name}: {instead}"
    names = list(inspect.signature(cls).parameters)
    near = get_close_matches(name, names, 1, _NEAR)
    hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(names)}"
    return f"{cls.__name__}() got an unexpected keyword argument {name!r}: {hint}"
