"""The rules of the house as tests: import arrows, purity, ports, size, docstrings.

Each rule is a function from one parsed file to what is wrong in it. `test_tree_obeys` runs the
rules over the tree as it is; `test_rule_bites` shows each rule a file that breaks it, so that a
rule that never fires is noticed.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# --- What others adjust ---------------------------------------------------------------------------

PACKAGES = ("icecore", "replication", "node", "coordinator")
CODE_FOLDERS = (*PACKAGES, "tests", "benchmarks", "examples", "scripts")
GENERATED = ("icecore/v1/",)

# Which of our packages each package may import, besides itself.
ARROWS = {
    "icecore": frozenset[str](),
    "replication": frozenset({"icecore"}),
    "node": frozenset({"icecore", "replication"}),
    "coordinator": frozenset({"icecore", "replication"}),
}

# Pure modules: all of replication/, and these. They may import each other and what follows.
PURE_FILES = frozenset(
    {
        "coordinator/cluster_state.py",
        "coordinator/digest_changes.py",
        "coordinator/disk_changes.py",
        "coordinator/lossy_changes.py",
        "coordinator/node_changes.py",
        "coordinator/placement.py",
        "coordinator/producer_changes.py",
        "coordinator/record_json.py",
        "coordinator/records.py",
        "coordinator/segment_changes.py",
        "coordinator/topic_changes.py",
    }
)
PURE_MAY_IMPORT = ("icecore.errors", "icecore.batch", "icecore.model", "replication")
IMPURE_STDLIB = frozenset(
    [
        *("asyncio", "concurrent", "multiprocessing", "queue", "subprocess", "threading"),
        *("datetime", "random", "secrets", "time", "uuid"),
        *("io", "os", "pathlib", "shutil", "sqlite3", "tempfile"),
        *("select", "selectors", "signal", "socket", "ssl", "urllib"),
    ]
)
IMPURE_BUILTINS = frozenset({"open", "print", "input", "breakpoint"})

# The shells of node and coordinator reach clock, randomness and threads through ports; only these
# modules are adapters.
ADAPTERS = frozenset(
    {
        "icecore/net.py",
        "icecore/system.py",
        "node/__main__.py",
        "node/storage/data_folder.py",
        "node/storage/whole_sync.py",
        "node/executor.py",
        "coordinator/__main__.py",
    }
)
BEHIND_PORTS = (
    *("time", "random", "secrets", "threading"),
    *("uuid.uuid1", "uuid.uuid4", "os.urandom", "asyncio.to_thread", "datetime.datetime.now"),
)

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 500
LONG_FUNCTIONS = frozenset[str]()  # "path:name"
LONG_FILES = frozenset[str]()

# Names with one agreed replacement (docs/GLOSSARY.md): partition; the exclusive end_offset.
BANNED_NAME = re.compile(r"(^|_)((?i:shards?)|last_offset|max_offset)($|_)")

# --- Reading the tree -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Module:
    """One parsed Python file; `path` is relative to the root, with forward slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.path.split("/")[0]

    @property
    def is_pure(self) -> bool:
        return self.package == "replication" or self.path in PURE_FILES


def parse(path: str, text: str) -> Module:
    return Module(path, text, ast.parse(text, path))


@lru_cache(maxsize=1)
def all_modules() -> tuple[Module, ...]:
    paths = [
        path.relative_to(ROOT).as_posix()
        for folder in CODE_FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    return tuple(
        parse(path, (ROOT / path).read_text()) for path in paths if not path.startswith(GENERATED)
    )


def imported_names(module: Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import; `from a import b` is `a.b`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.path.removesuffix(".py").split("/")[: -node.level]
                base = ".".join([*parents, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for such an expression, and "" for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def is_within(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


# --- The rules ------------------------------------------------------------------------------------


def import_arrows(module: Module) -> Iterator[str]:
    """icecore ← replication ← {node, coordinator}; tests and examples may import anything."""
    if module.package not in ARROWS:
        return
    allowed = ARROWS[module.package] | {module.package}
    for line, name in imported_names(module):
        root = name.split(".")[0]
        if root in PACKAGES and root not in allowed:
            yield f"{line}: {module.package} must not import {name}"


def circle(modules: tuple[Module, ...]) -> list[str]:
    """Of two files one is below the other, also where an import is for types only.

    Returns the names of the modules on a circle, empty when there is none.
    """
    by_name = {each.path.removesuffix(".py").replace("/", "."): each for each in modules}
    imports: dict[str, set[str]] = {}
    for name, module in by_name.items():
        found = {imported for _, imported in imported_names(module)}
        found |= {imported.rpartition(".")[0] for imported in found}  # the name of a definition
        imports[name] = (found & by_name.keys()) - {name}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def purity(module: Module) -> Iterator[str]:
    """A pure module imports pure modules only, and calls no builtin that touches the world."""
    if not module.is_pure:
        return
    pure_modules = tuple(path.removesuffix(".py").replace("/", ".") for path in PURE_FILES)
    own = pure_modules if module.path in PURE_FILES else ()
    for line, name in imported_names(module):
        root = name.split(".")[0]
        is_pure_stdlib = root in sys.stdlib_module_names and root not in IMPURE_STDLIB
        if not is_pure_stdlib and not is_within(name, PURE_MAY_IMPORT + own):
            yield f"{line}: a pure module must not import {name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and dotted(node.func) in IMPURE_BUILTINS:
            yield f"{node.lineno}: a pure module must not call {dotted(node.func)}()"
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield f"{node.lineno}: a pure module must not wait"


def ports(module: Module) -> Iterator[str]:
    """Outside the adapters, node and coordinator take time, chance and threads from their ports."""
    if module.package not in ("node", "coordinator") or module.path in ADAPTERS:
        return
    for line, name in imported_names(module):
        if is_within(name, BEHIND_PORTS):
            yield f"{line}: {name} must be reached through a port"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and dotted(node) in BEHIND_PORTS:
            yield f"{node.lineno}: {dotted(node)} must be reached through a port"


def size(module: Module) -> Iterator[str]:
    """A function fits a screen, a file fits a head."""
    lines = module.text.count("\n")
    if lines > MAX_FILE_LINES and module.path not in LONG_FILES:
        yield f"1: {lines} lines, the limit is {MAX_FILE_LINES}: split it by idea"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES and f"{module.path}:{node.name}" not in LONG_FUNCTIONS:
                yield f"{node.lineno}: {node.name} has {length} lines, not ≤ {MAX_FUNCTION_LINES}"


def docstring(module: Module) -> Iterator[str]:
    """The first paragraph of a file tells what the room is for."""
    if not ast.get_docstring(module.tree):
        yield "1: no module docstring"


def swallowed_errors(module: Module) -> Iterator[str]:
    """Nothing catches everything and says nothing."""
    broad = {"Exception", "BaseException"}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            is_broad = node.type is None or dotted(node.type) in broad
            is_silent = all(isinstance(statement, ast.Pass) for statement in node.body)
        elif isinstance(node, ast.Call):
            is_broad = any(dotted(argument) in broad for argument in node.args)
            is_silent = dotted(node.func) in ("suppress", "contextlib.suppress")
        else:
            continue
        if is_broad and is_silent:
            yield f"{node.lineno}: every exception is swallowed"


def names(module: Module) -> Iterator[str]:
    """One name per concept: what the glossary replaces is not used for our own names."""
    if module.package not in PACKAGES:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        else:
            continue
        if BANNED_NAME.search(name):
            yield f"{node.lineno}: {name}: see docs/GLOSSARY.md for the word to use"


Rule = Callable[[Module], Iterator[str]]
RULES: tuple[Rule, ...] = (
    *(import_arrows, purity, ports, size, docstring, swallowed_errors, names),
)

# --- The tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_obeys(rule: Rule) -> None:
    found = [f"{module.path}:{problem}" for module in all_modules() for problem in rule(module)]
    assert not found, "\n".join([str(rule.__doc__), *found])


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (import_arrows, "icecore/client.py", "from replication import leader"),
        (import_arrows, "icecore/client.py", "import node.segment"),
        (import_arrows, "replication/leader.py", "from node.segment import Segment"),
        (import_arrows, "node/server.py", "def f():\n    import coordinator"),
        (import_arrows, "coordinator/loop.py", "from node import server"),
        (purity, "replication/leader.py", "import asyncio"),
        (purity, "replication/leader.py", "from os import path"),
        (purity, "replication/leader.py", "from icecore import client"),
        (purity, "replication/leader.py", "import numpy as np"),
        (purity, "replication/leader.py", "open('x')"),
        (purity, "replication/leader.py", "async def f(): ..."),
        (purity, "coordinator/placement.py", "import random"),
        (purity, "coordinator/placement.py", "from coordinator import loop"),
        (purity, "coordinator/placement.py", "from .loop import Loop"),
        (ports, "node/partition.py", "import time"),
        (ports, "node/partition.py", "from threading import Lock"),
        (ports, "node/partition.py", "import uuid\nx = uuid.uuid4()"),
        (ports, "coordinator/loop.py", "import asyncio\nasyncio.to_thread(f)"),
        (size, "node/a.py", "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES),
        (size, "node/a.py", "x = 1\n" * (MAX_FILE_LINES + 1)),
        (docstring, "node/a.py", "x = 1"),
        (swallowed_errors, "node/a.py", "try:\n    f()\nexcept Exception:\n    pass"),
        (swallowed_errors, "node/a.py", "try:\n    f()\nexcept:\n    pass"),
        (swallowed_errors, "node/a.py", "with contextlib.suppress(Exception):\n    f()"),
        (names, "node/a.py", "def shard_of(key): ..."),
        (names, "icecore/a.py", "last_offset = 1"),
    ],
)
def test_rule_bites(rule: Rule, path: str, text: str) -> None:
    assert list(rule(parse(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (
            import_arrows,
            "node/server.py",
            "from replication.leader import LeaderCore\nimport icecore.v1",
        ),
        (
            purity,
            "replication/leader.py",
            "import enum\nfrom icecore.batch import Header\nfrom . import isr",
        ),
        (purity, "coordinator/placement.py", "from .cluster_state import ClusterState"),
        (ports, "node/executor.py", "import time, threading"),
        (ports, "node/partition.py", "import asyncio, uuid\nx = uuid.UUID(int=1)"),
        (swallowed_errors, "node/a.py", "try:\n    f()\nexcept KeyError:\n    pass"),
        (names, "icecore/a.py", "end_offset = max_offsets_per_fetch = 1"),
    ],
)
def test_rule_allows(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(parse(path, text)))


def test_no_file_is_above_itself() -> None:
    assert not circle(tuple(each for each in all_modules() if each.package in PACKAGES))


def test_circles_are_found() -> None:
    below = parse("node/a.py", "if TYPE_CHECKING:\n    from node.b import B")
    above = parse("node/b.py", "from node import a")
    assert circle((below, above)) in (
        ["node.a", "node.b", "node.a"],
        ["node.b", "node.a", "node.b"],
    )
    assert not circle((parse("node/a.py", "from node.c import C"), above))


def test_no_python_below_folders_that_other_packages_own() -> None:
    """`proto` and `docker` are import names of other packages, which a module could shadow."""
    found = [
        path.relative_to(ROOT).as_posix()
        for folder in ("proto", "docker", "helm")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert not found


def test_asserts_stay_on() -> None:
    """Invariants are asserts; -O would switch them off without a word."""
    folders = ("docker", "helm", "scripts", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    switch = re.compile(r"PYTHONOPTIMIZE|\bpython[0-9.]*\s+(-\w+\s+)*-OO?\b")
    found = [
        path.relative_to(ROOT).as_posix()
        for path in [ROOT / "Makefile", *files]
        if path.suffix != ".pyc" and switch.search(path.read_text(errors="replace"))
    ]
    assert not found
