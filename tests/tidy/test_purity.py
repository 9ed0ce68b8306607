"""Protocol code touches nothing of the world; the shells touch it through ports."""

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.tidy.tree import Module, Rule, dotted, imported_names, parse, problems

# Pure rooms. They may import each other's modules and what follows.
PURE = (
    "icecore_replication",
    "icecore_coordinator.state",
    "icecore_coordinator.decisions",
    "icecore_coordinator.election.candidacy",
)
PURE_MAY_IMPORT = (
    "icecore.errors",
    "icecore.codec.batch",
    "icecore.codec.chain",
    "icecore.codec.checksum",
    "icecore.model",
    "icecore.tier_records",
    "icecore.topic_settings",
    *PURE,
)
IMPURE_STDLIB = frozenset(
    [
        *("asyncio", "concurrent", "multiprocessing", "queue", "subprocess", "threading"),
        *("datetime", "random", "secrets", "time", "uuid"),
        *("io", "os", "pathlib", "shutil", "sqlite3", "tempfile"),
        *("select", "selectors", "signal", "socket", "ssl", "urllib"),
    ]
)
IMPURE_BUILTINS = frozenset({"open", "print", "input", "breakpoint"})

# The shells of node and coordinator reach clock, chance and threads through ports; only these
# modules are adapters.
ADAPTERS = frozenset(
    {
        "icecore_node.__main__",
        "icecore_node.storage.data_folder",
        "icecore_node.storage.files.locks",
        "icecore_node.storage.files.whole_sync",
        "icecore_node.storage.rocksdb_engine.rocks_database",
        "icecore_node.io.executor",
        "icecore_node.io.thread_pool",
        "icecore_node.remote.store.webhdfs_store",
        "icecore_coordinator.__main__",
    }
)
BEHIND_PORTS = (
    *("time", "random", "secrets", "threading"),
    *("uuid.uuid1", "uuid.uuid4", "os.urandom", "asyncio.to_thread", "datetime.datetime.now"),
)


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    """Return whether a dotted name is one of these or below it."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def purity(module: Module) -> Iterator[str]:
    """A pure module imports pure modules only, and calls no builtin that touches the world."""
    if not is_within(module.name, PURE):
        return
    for line, name in imported_names(module):
        root = name.split(".")[0]
        is_pure_stdlib = root in sys.stdlib_module_names and root not in IMPURE_STDLIB
        if not is_pure_stdlib and not is_within(name, PURE_MAY_IMPORT):
            yield f"{line}: a pure module must not import {name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in IMPURE_BUILTINS:
            yield f"{node.lineno}: a pure module must not call {dotted(node.func)}()"
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield f"{node.lineno}: a pure module must not wait"


def ports(module: Module) -> Iterator[str]:
    """Outside the adapters, node and coordinator take time, chance and threads from their ports."""
    is_shell = module.package in ("icecore_node", "icecore_coordinator")
    if not is_shell or module.name in ADAPTERS:
        return
    for line, name in imported_names(module):
        if is_within(name, BEHIND_PORTS):
            yield f"{line}: {name} must be reached through a port"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and dotted(node) in BEHIND_PORTS:
            yield f"{node.lineno}: {dotted(node)} must be reached through a port"


@pytest.mark.parametrize("rule", [purity, ports], ids=lambda rule: rule.__name__)
def test_tree_obeys(rule: Rule) -> None:
    assert not (found := problems(rule)), "\n".join(found)


LEADER = "replication/icecore_replication/leader.py"
PLACEMENT = "coordinator/icecore_coordinator/decisions/placement.py"
LOOP = "coordinator/icecore_coordinator/work/loop.py"
ROLE = "node/icecore_node/roles/role.py"


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (purity, LEADER, "import asyncio"),
        (purity, LEADER, "from os import path"),
        (purity, LEADER, "from icecore import client"),
        (purity, LEADER, "import numpy as np"),
        (purity, LEADER, "open('x')"),
        (purity, LEADER, "async def f(): ..."),
        (purity, PLACEMENT, "import random"),
        (purity, PLACEMENT, "from icecore_coordinator.work import loop"),
        (purity, PLACEMENT, "from ..work.loop import Loop"),
        (ports, ROLE, "import time"),
        (ports, ROLE, "from threading import Lock"),
        (ports, ROLE, "import uuid\nx = uuid.uuid4()"),
        (ports, LOOP, "import asyncio\nasyncio.to_thread(f)"),
    ],
)
def test_rule_bites(rule: Rule, path: str, text: str) -> None:
    assert list(rule(parse(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (purity, LEADER, "import enum\nfrom icecore.codec.batch import Header\nfrom . import isr"),
        (purity, PLACEMENT, "from icecore_coordinator.state.cluster_state import ClusterState"),
        (ports, "node/icecore_node/io/executor.py", "import time, threading"),
        (ports, ROLE, "import asyncio, uuid\nx = uuid.UUID(int=1)"),
    ],
)
def test_rule_allows(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(parse(path, text)))
