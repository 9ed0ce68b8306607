"""The allowed imports: between packages, between rooms within a package, and no file above
itself."""

from collections.abc import Iterator
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.tidy.tree import (
    FOLDERS,
    Module,
    Rule,
    imported_names,
    imports,
    parse,
    problems,
    production,
)

# Which of our packages each package may import, besides itself.
PACKAGES = {
    "icecore": frozenset[str](),
    "icecore_replication": frozenset({"icecore"}),
    "icecore_node": frozenset({"icecore", "icecore_replication"}),
    "icecore_coordinator": frozenset({"icecore", "icecore_replication"}),
}

# The rooms of a package, lowest first: each imports itself and rooms before it. A room is a folder
# or a single file; the longest name that fits is the one that counts.
ROOMS = {
    "icecore": (
        *("errors", "shown", "topic_settings", "model", "extras", "tier_records", "v1", "codec"),
        *("process.log", "rpc"),
        *("process", "metadata_backup"),
        *("client.checks", "client.retries", "client.types", "client.cluster_types"),
        "client.conditions",
        "client.options",
        *("client.cluster", "client.produce", "client.consume", "client.lookup", "client.admin"),
        *("client", "blocking", "spark", "dev", "testing", "cli"),
    ),
    "icecore_node": (
        *("ports", "metrics", "timing"),
        *("storage.engine", "storage.port", "storage.files", "storage.index", "storage.control"),
        *("storage.batches", "storage.segment_engine", "storage.memory_engine"),
        *("storage.rocksdb_engine", "storage.shared_engine", "storage"),
        *("remote.store", "remote.format", "remote", "remote.verify"),
        *("config", "io", "identity", "context", "replica", "link", "remote.read", "replication"),
        *("registry", "maintenance", "remote.write"),
        *("membership", "serving", "node", "sampling", "offline", "bucket_commands", "__main__"),
    ),
    "icecore_coordinator": (
        *(
            "timing",
            "config",
            "state",
            "stores",
            "election",
            "decisions",
            "ledger",
            "nodes",
            "work",
        ),
        *("services", "coordinator", "suspended", "standby", "metrics", "store_commands"),
        "__main__",
    ),
}

FLOORS_MAX = {"icecore_node": 12, "icecore_coordinator": 8}
"""Files on the longest chain of imports; more of them make a tower that nobody sees through."""


def package_arrows(module: Module) -> Iterator[str]:
    """icecore ← replication ← {node, coordinator}; tests and examples may import anything."""
    if module.package not in PACKAGES:
        return
    allowed = PACKAGES[module.package] | {module.package}
    for line, name in imported_names(module):
        root = name.split(".")[0]
        if root in FOLDERS and root not in allowed:
            yield f"{line}: {module.package} must not import {name}"
        if root in ("node", "coordinator", "replication"):
            yield f"{line}: {name} is a folder; the import name is icecore_{root}"


def room_of(name: str) -> str:
    """The room of a dotted name, "" for the package itself and for what is in no room."""
    package, _, rest = name.partition(".")
    parts = rest.split(".")
    for count in range(len(parts), 0, -1):
        room = ".".join(parts[:count])
        if room in ROOMS[package]:
            return room
    return ""


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    return frozenset(each.name for each in production())


def room_arrows(module: Module) -> Iterator[str]:
    """Within a package no import runs up: a room imports itself and the rooms below it."""
    order = ROOMS.get(module.package)
    if order is None or module.name == module.package:
        return
    room = room_of(module.name)
    if not room:
        yield f"1: {module.name} is in no room"
        return
    for line, name in imported_names(module):
        if not name.startswith(module.package + "."):
            continue
        target = name if name in _known() else name.rpartition(".")[0]
        other = room_of(target)
        if other and order.index(other) > order.index(room):
            yield f"{line}: {room} is below {other}: it must not import {name}"


def circle(modules: tuple[Module, ...]) -> list[str]:
    """Find a circle of imports. Of two files one is below the other, also where an import is for
    types only.

    Returns the names of the modules on a circle, empty when there is none.
    """
    try:
        TopologicalSorter(imports(modules)).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def floors(modules: tuple[Module, ...]) -> list[str]:
    """The longest chain of imports, from the top down."""
    graph = imports(modules)
    below: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():
        longest = max((below[each] for each in sorted(graph[name])), key=len, default=[])
        below[name] = [name, *longest]
    return max(below.values(), key=len)


@pytest.mark.parametrize("rule", [package_arrows, room_arrows], ids=lambda rule: rule.__name__)
def test_tree_obeys(rule: Rule) -> None:
    assert not (found := problems(rule)), "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (package_arrows, "icecore/client.py", "from icecore_replication import leader"),
        (package_arrows, "icecore/client.py", "import icecore_node.replication"),
        (package_arrows, "replication/icecore_replication/a.py", "from icecore_node.io import x"),
        (package_arrows, "node/icecore_node/a.py", "def f():\n    import icecore_coordinator"),
        (package_arrows, "coordinator/icecore_coordinator/a.py", "from icecore_node import node"),
        (package_arrows, "node/icecore_node/a.py", "from node.icecore_node.io import io_pool"),
        (
            room_arrows,
            "node/icecore_node/io/a.py",
            "from icecore_node.replication.leader import Leader",
        ),
        (room_arrows, "node/icecore_node/storage/files/a.py", "from icecore_node.storage import x"),
        (room_arrows, "icecore/codec/a.py", "from icecore.client import admin"),
        (room_arrows, "node/icecore_node/a.py", "x = 1"),
    ],
)
def test_rule_bites(rule: Rule, path: str, text: str) -> None:
    assert list(rule(parse(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (
            package_arrows,
            "node/icecore_node/a.py",
            "from icecore_replication.leader import LeaderCore\nimport icecore.v1",
        ),
        (room_arrows, "node/icecore_node/io/a.py", "from icecore_node.ports import Lock"),
        (room_arrows, "node/icecore_node/node.py", "from icecore_node.serving import produce"),
    ],
)
def test_rule_allows(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(parse(path, text)))


def test_no_file_is_above_itself() -> None:
    assert not circle(production())


@pytest.mark.parametrize("package", FLOORS_MAX)
def test_floors(package: str) -> None:
    chain = floors(tuple(each for each in production() if each.package == package))
    assert len(chain) <= FLOORS_MAX[package], f"{len(chain)} floors:\n" + "\n".join(chain)


def test_circles_and_floors_are_counted() -> None:
    below = parse("node/icecore_node/a.py", "if TYPE_CHECKING:\n    from icecore_node.b import B")
    above = parse("node/icecore_node/b.py", "from icecore_node import a")
    names = ["icecore_node.a", "icecore_node.b"]
    assert circle((below, above)) in ([*names, names[0]], [*reversed(names), names[1]])
    other = parse("node/icecore_node/a.py", "from icecore_node.c import C")
    assert not circle((other, above))
    assert floors((other, above)) == ["icecore_node.b", "icecore_node.a"]
