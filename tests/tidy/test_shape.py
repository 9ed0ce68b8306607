"""Functions that fit a screen, files that say what they are for, words with one meaning."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.tree import FOLDERS, Module, Rule, dotted, parse, problems

MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 500

# Names with one agreed replacement (docs/GLOSSARY.md): partition; the exclusive end_offset.
BANNED_NAME = re.compile(r"(^|_)((?i:shards?)|last_offset|max_offset)($|_)")


def size(module: Module) -> Iterator[str]:
    """A function fits a screen, a file fits a head."""
    lines = module.text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"1: {lines} lines, the limit is {MAX_FILE_LINES}: split it by idea"
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
            yield f"{node.lineno}: {name}: see docs/GLOSSARY.md for the word to use"


RULES = (size, docstring, swallowed_errors, names)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_obeys(rule: Rule) -> None:
    assert not (found := problems(rule)), "\n".join(found)


NODE_FILE = "node/icecore_node/a.py"


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (size, NODE_FILE, "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES),
        (size, NODE_FILE, "x = 1\n" * (MAX_FILE_LINES + 1)),
        (docstring, NODE_FILE, "x = 1"),
        (swallowed_errors, NODE_FILE, "try:\n    f()\nexcept Exception:\n    pass"),
        (swallowed_errors, NODE_FILE, "try:\n    f()\nexcept:\n    pass"),
        (swallowed_errors, NODE_FILE, "with contextlib.suppress(Exception):\n    f()"),
        (names, NODE_FILE, "def shard_of(key): ..."),
        (names, "icecore/a.py", "last_offset = 1"),
    ],
)
def test_rule_bites(rule: Rule, path: str, text: str) -> None:
    assert list(rule(parse(path, text)))


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (swallowed_errors, NODE_FILE, "try:\n    f()\nexcept KeyError:\n    pass"),
        (names, "icecore/a.py", "end_offset = max_offsets_per_fetch = 1"),
    ],
)
def test_rule_allows(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(parse(path, text)))
