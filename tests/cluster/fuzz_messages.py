"""Messages between servers, taken apart field by field: pure, and made by descriptor reflection.

A true message is built from facts by the names of its fields, at any depth. Then one field of it is
altered in one way: absent, zero, own, another's, stale, future, at the bound, beyond, or many. So a
field that is added to a message is altered from then on, and nobody has to name it here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from icecore.v1 import coordinator_pb2, mirror_pb2, replication_pb2

SERVICES: Final = (
    *("CoordinatorService", "NodeService"),
    *("MirrorService", "ReplicationService"),
)
"""Services that servers offer each other."""
DEPTH_MAX: Final = 6
MANY: Final = 1_025
"""One more than an order may have (``order_checks.ITEMS_MAX``)."""
TEXT: Final = "x\n\x1b[31m'\";../../\u202e" + "y" * 70_000
WAYS: Final = (
    *("true", "absent", "zero", "own", "another", "stale", "future"),
    *("bound", "beyond", "many", "cut"),
)
_INTEGERS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (0, (1 << 31) - 1),
}
_STEPS: Final = (1, 2, 1_000, 1 << 20, 1 << 40)
_BOUNDS: Final = (1 << 10, 1 << 16, 1 << 20, 1 << 32, 1 << 47, 1 << 48, 1 << 62)

Path = tuple[str, ...]


class Target(NamedTuple):
    """One field of the request of one method."""

    service: str
    method: str
    path: Path

    def __str__(self) -> str:
        return f"{self.service}/{self.method} {'.'.join(self.path)}"


@dataclass(frozen=True)
class Facts:
    """Values that anybody can learn, by name of a field."""

    true: Mapping[str, Any]
    """Those of one subject: they fit together. A message is taken as a whole."""
    own: Mapping[str, Any]
    """Those of the receiver."""
    others: Mapping[str, list[Any]]
    """All that were seen of other subjects."""


def methods() -> dict[tuple[str, str], Any]:
    """Descriptors of the requests of all methods between servers."""
    found = {}
    for module in (coordinator_pb2, mirror_pb2, replication_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                found[service.name, method.name] = method.input_type
    return found


def targets() -> list[Target]:
    """All fields of all requests, at any depth."""
    return [
        Target(service, method, path)
        for (service, method), descriptor in methods().items()
        for path in _paths(descriptor, ())
    ]


def _paths(descriptor: Any, before: Path) -> Iterator[Path]:
    if len(before) >= DEPTH_MAX:
        return
    for each in descriptor.fields:
        path = (*before, each.name)
        yield path
        if each.message_type is not None:
            yield from _paths(each.message_type, path)


# --- true messages ------------------------------------------------------------------------------


def build(descriptor: Any, facts: Facts, rng: Random, depth: int = 0) -> Any:
    """A message with every field set, from the facts where their names are known."""
    message = GetMessageClass(descriptor)()
    for each in descriptor.fields:
        if each.message_type is not None:
            _build_inner(message, each, facts, rng, depth)
        elif each.is_repeated:
            values = _listed(facts.true.get(each.name, _made(each, rng)))
            getattr(message, each.name).extend(values)
        else:
            _put(message, each, facts.true.get(each.name, _made(each, rng)))
    return message


def _build_inner(message: Any, each: Any, facts: Facts, rng: Random, depth: int) -> None:
    if depth >= DEPTH_MAX or each.message_type.GetOptions().map_entry:
        return
    whole = facts.true.get(each.message_type.name)
    inner = build(each.message_type, facts, rng, depth + 1) if whole is None else whole
    if each.is_repeated:
        getattr(message, each.name).append(inner)
    else:
        getattr(message, each.name).CopyFrom(inner)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _made(each: Any, rng: Random) -> Any:
    """A plausible value of a field of which no fact is known."""
    if each.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if each.cpp_type in _INTEGERS:
        return rng.choice((0, 1, 1, 2, 3, 7, 100))
    if each.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        if each.type != FieldDescriptor.TYPE_BYTES:
            return rng.choice(("", "word"))
        return rng.choice((b"", rng.randbytes(16), rng.randbytes(32)))  # as ids and digests
    return 0.0


def _put(message: Any, each: Any, value: Any) -> None:
    """Set a scalar field, cut to what its type can hold."""
    if isinstance(value, list | tuple):
        value = value[0] if value else 0
    if each.cpp_type in _INTEGERS:
        low, high = _INTEGERS[each.cpp_type]
        value = max(low, min(high, int(value)))
    setattr(message, each.name, value)


# --- altered messages ---------------------------------------------------------------------------


def alter(message: Any, path: Path, way: str, facts: Facts, rng: Random) -> str:
    """Alter one field of a message. Return what it became, for people."""
    holder = message
    for name in path[:-1]:
        inner = getattr(holder, name)
        if holder.DESCRIPTOR.fields_by_name[name].is_repeated:
            if not inner:
                inner.add()
            inner = inner[rng.randrange(len(inner))]
        holder = inner
    each = holder.DESCRIPTOR.fields_by_name[path[-1]]
    if way in ("true", "cut"):
        return way
    if way == "absent":
        holder.ClearField(each.name)
        return way
    if each.is_repeated:
        return _alter_list(holder, each, way, facts, rng)
    if each.message_type is not None:
        return _alter_inner(holder, each, way, facts)
    value = _altered(getattr(holder, each.name), each, way, facts, rng)
    _put(holder, each, value)
    return repr(value)[:80]


def _alter_list(holder: Any, each: Any, way: str, facts: Facts, rng: Random) -> str:
    items = getattr(holder, each.name)
    if each.message_type is not None:
        if way in ("zero", "stale"):
            items.add()  # an empty one
        elif way in ("another", "own") and (found := facts.others.get(each.message_type.name)):
            items.add().CopyFrom(rng.choice(found))
        elif items:
            items.extend([items[0]] * (MANY if way in ("many", "beyond") else 1))
        return f"{len(items)} items"
    if way in ("many", "beyond"):
        items.extend(list(items[:1]) * MANY or [_made(each, rng)] * MANY)
        return f"{len(items)} items"
    first = items[0] if items else _made(each, rng)
    value = _altered(first, each, way, facts, rng)
    if each.cpp_type in _INTEGERS:
        low, high = _INTEGERS[each.cpp_type]
        value = max(low, min(high, int(value)))
    items.append(value)
    return f"and {value!r:.80}"


def _alter_inner(holder: Any, each: Any, way: str, facts: Facts) -> str:
    inner = getattr(holder, each.name)
    found = facts.others.get(each.message_type.name)
    if way in ("another", "own", "stale") and found:
        inner.CopyFrom(found[0] if way == "stale" else found[-1])
        return way
    inner.Clear()
    inner.SetInParent()
    return "empty"


def _altered(value: Any, each: Any, way: str, facts: Facts, rng: Random) -> Any:
    """Another value of one field."""
    own, others = facts.own.get(each.name), facts.others.get(each.name)
    if way == "own" and own is not None:
        return own
    if way == "another" and others:
        return rng.choice(others)
    if each.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return way not in ("zero", "stale") and not value
    if each.cpp_type in _INTEGERS:
        return _number(int(value), each, way, rng)
    if each.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return _text(value, way, rng)
    return value


def _number(value: int, each: Any, way: str, rng: Random) -> int:
    low, high = _INTEGERS[each.cpp_type]
    match way:
        case "zero":
            return 0
        case "stale":
            return value - rng.choice(_STEPS[:3])
        case "bound":
            return rng.choice((*_BOUNDS, low, high)) - rng.choice((0, 1))
        case "beyond" | "many":
            return rng.choice((high, high - 1, low, -1, 1 << 63, *(each + 1 for each in _BOUNDS)))
        case _:
            return value + rng.choice(_STEPS)


def _text(value: Any, way: str, rng: Random) -> Any:
    """Other text, or other bytes."""
    if isinstance(value, str):
        return {"zero": "", "stale": value[:-1], "bound": "z" * 255, "future": value + "é"}.get(
            way, TEXT
        )
    match way:
        case "zero":
            return b""
        case "stale":
            return value[:-1]
        case "future":
            return bytes(len(value)) if value else b"\0"
        case "bound":
            return rng.randbytes(len(value) or 32)
        case _:
            return value + rng.randbytes(rng.choice((1, 16, 100_000)))
