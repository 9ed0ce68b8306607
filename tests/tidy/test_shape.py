"""Functions that fit a screen, files that say what they are for, words with one meaning."""

import ast
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache

import pytest

from tests.tidy.tree import FOLDERS, Module, Rule, dotted, parse, problems, production

MAX_FUNCTION_LINES = 70
LONG_FILE_LINES = 500
"""Beyond it a file is looked at, not refused: a limit is met by squeezing, an idea by splitting."""
SMALL_FILE_LINES = 60
SMALL_FILES_MAX = 38
"""So many files are smaller: ports, entry points, ideas that several rooms share. More are rooms
without furniture: whoever adds one finds the file that it is read with, or lowers this number."""
LARGE_CLASS_LINES = 150
MAX_PUBLIC_METHODS = 12

OUTSIDE_BASES = re.compile(
    r"(Protocol|Generic)\b|(Enum|IntEnum|StrEnum|NamedTuple|Settings)$|Error$"
)
"""Bases that any class may have: shapes of the language, protocols, errors, the settings."""

EXCUSED = {
    "icecore/client/admin/admin.py": "Admin: one method per command of the public interface",
    "icecore/blocking/admin.py": "Admin: the same commands for threads",
    "icecore/client/consume/consumer.py": "Consumer: one method per question of its users",
    "icecore/blocking/consumer.py": "Consumer: the same questions for threads",
}
"""Classes with many methods that stay as they are, each with its reason."""

# Names with one agreed replacement (docs/reference/glossary.md): partition, end_offset (exclusive).
BANNED_NAME = re.compile(r"(^|_)((?i:shards?)|last_offset|max_offset)($|_)")


def size(module: Module) -> Iterator[str]:
    """A function fits a screen."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
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
    if module.package not in FOLDERS:
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
            yield f"{node.lineno}: {name}: see docs/reference/glossary.md for the word to use"


def is_long(module: Module) -> bool:
    """Return whether somebody should look for a second idea in this file."""
    return module.text.count("\n") > LONG_FILE_LINES


@lru_cache(maxsize=1)
def _our_classes() -> dict[str, frozenset[str]]:
    """Return the modules that define each class of production code, by the class's name."""
    found: dict[str, set[str]] = {}
    for module in production():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).add(module.name)
    return {name: frozenset(modules) for name, modules in found.items()}


def _classes(module: Module) -> Iterator[ast.ClassDef]:
    if module.package in FOLDERS:
        yield from (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def inheritance(module: Module) -> Iterator[str]:
    """No class inherits from one of ours in another file: what it does is read in one place."""
    own = {node.name for node in _classes(module)}
    for node in _classes(module):
        if any(dotted(base) == "Protocol" for base in node.bases):
            continue  # a port may be another one and more
        for base in node.bases:
            name = dotted(base.value if isinstance(base, ast.Subscript) else base)
            name = name.rpartition(".")[2]
            if name in _our_classes() and name not in own and not OUTSIDE_BASES.search(name):
                yield f"{node.lineno}: {node.name} inherits from {name} of another file: hold one"


def large_classes(module: Module) -> Iterator[str]:
    """A file has one large class at most: the second one is an idea of its own."""
    large = [
        node
        for node in _classes(module)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > LARGE_CLASS_LINES
    ]
    if len(large) > 1:
        classes = ", ".join(node.name for node in large)
        yield f"{large[1].lineno}: more than one class over {LARGE_CLASS_LINES} lines: {classes}"


def public_methods(module: Module) -> Iterator[str]:
    """A class does what twelve names can say."""
    for node in _classes(module):
        public = {
            each.name
            for each in node.body
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and not each.name.startswith("_")
        }
        if len(public) > MAX_PUBLIC_METHODS and module.path not in EXCUSED:
            yield f"{node.lineno}: {node.name} has {len(public)}, not ≤ {MAX_PUBLIC_METHODS}"


def splats(module: Module) -> Iterator[str]:
    """No ``*(a, b)`` to outwit the formatter: it hides how many arguments there are."""
    if module.package not in FOLDERS:
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List):
            yield f"{node.lineno}: write the arguments one per line, or name what they are"


def format_off(module: Module) -> Iterator[str]:
    """The formatter decides everywhere, or nobody knows where it does."""
    for number, text in enumerate(module.text.splitlines(), 1):
        if re.search(r"#\s*fmt:\s*(skip|off)", text):
            yield f"{number}: let the formatter have it"


RULES = (
    size,
    docstring,
    swallowed_errors,
    names,
    inheritance,
    large_classes,
    public_methods,
    splats,
    format_off,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_obeys(rule: Rule) -> None:
    found = problems(rule)
    assert set(found) <= {str(rule.__doc__)}, "\n".join(found)


class LongFileWarning(UserWarning):
    """A file that somebody should look at."""


@pytest.mark.filterwarnings("default::tests.tidy.test_shape.LongFileWarning")
def test_long_files_are_named() -> None:
    for module in filter(is_long, production()):
        warnings.warn(LongFileWarning(f"{module.path} is long"), stacklevel=1)


def test_a_long_file_is_noticed() -> None:
    assert is_long(parse(NODE_FILE, "x = 1\n" * (LONG_FILE_LINES + 1)))
    assert not is_long(parse(NODE_FILE, "x = 1\n" * LONG_FILE_LINES))


def is_small(module: Module) -> bool:
    """``__init__.py`` and ``__main__.py`` have their names from Python."""
    name = module.path.rsplit("/", 1)[-1]
    return len(module.text.splitlines()) < SMALL_FILE_LINES and not name.startswith("__")


def test_small_files_become_fewer() -> None:
    small = [each.path for each in production() if each.package in FOLDERS and is_small(each)]
    assert len(small) <= SMALL_FILES_MAX, "\n".join(small)


def test_a_small_file_is_noticed() -> None:
    assert is_small(parse(NODE_FILE, "x = 1\n" * (SMALL_FILE_LINES - 1)))
    assert not is_small(parse(NODE_FILE, "x = 1\n" * SMALL_FILE_LINES))
    assert not is_small(parse("node/icecore_node/__main__.py", "x = 1\n"))


NODE_FILE = "node/icecore_node/a.py"
LARGE = "class {}:\n" + "    x = 1\n" * LARGE_CLASS_LINES
METHODS = "class A:\n" + "".join(f"    def f{i}(self): ...\n" for i in range(12)) + "    {}\n"


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (size, NODE_FILE, "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES),
        (docstring, NODE_FILE, "x = 1"),
        (swallowed_errors, NODE_FILE, "try:\n    f()\nexcept Exception:\n    pass"),
        (swallowed_errors, NODE_FILE, "try:\n    f()\nexcept:\n    pass"),
        (swallowed_errors, NODE_FILE, "with contextlib.suppress(Exception):\n    f()"),
        (names, NODE_FILE, "def shard_of(key): ..."),
        (names, "icecore/a.py", "last_offset = 1"),
        (inheritance, NODE_FILE, "class A(LeaderCore): ..."),
        (inheritance, NODE_FILE, "class A(leader.LeaderCore): ..."),
        (inheritance, NODE_FILE, "class A(ThreadWorker[int]): ..."),
        (large_classes, NODE_FILE, LARGE.format("A") + LARGE.format("B")),
        (public_methods, NODE_FILE, METHODS.format("def f12(self): ...")),
        (splats, NODE_FILE, "log('%d %d', *(a, b))"),
        (splats, NODE_FILE, "x = (*(a, b), c)"),
        (format_off, "tests/a.py", "x = [1,\n     2]  # fmt" + ": skip"),
        (format_off, "tests/a.py", "# fmt" + ": off\nx = 1"),
    ],
)
def test_rule_bites(rule: Rule, path: str, text: str) -> None:
    assert list(rule(parse(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (swallowed_errors, NODE_FILE, "try:\n    f()\nexcept KeyError:\n    pass"),
        (names, "icecore/a.py", "end_offset = max_offsets_per_fetch = 1"),
        (inheritance, NODE_FILE, "class A(Protocol): ...\nclass B(A): ..."),
        (inheritance, NODE_FILE, "class A(StorageError): ...\nclass B(Settings): ..."),
        (inheritance, "tests/a.py", "class A(LeaderCore): ..."),
        (large_classes, NODE_FILE, LARGE.format("A") + "class B:\n    x = 1\n"),
        (public_methods, NODE_FILE, METHODS.format("def _f12(self): ...")),
        (public_methods, "icecore/client/admin/admin.py", METHODS.format("def f12(self): ...")),
        (splats, NODE_FILE, "f(*rows, *(each for each in them))"),
    ],
)
def test_rule_allows(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(parse(path, text)))
