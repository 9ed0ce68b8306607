"""Docstrings are sentences with a subject and a verb, or noun phrases that name the thing."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.tree import Module, Rule, parse, problems

HEADLESS = frozenset({"What", "Who", "Whose", "Whom", "Of", "That"})
"""A docstring that begins so has lost its subject: readers must guess the rest."""
QUESTIONS = frozenset({"Which", "Whether", "How", "Why"})
"""Half a question. A field may be called so; modules, classes and functions are or do something."""


def docstrings(module: Module) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, text, is of a field or constant) of all docstrings, those of fields included."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for place, each in enumerate(node.body):
                text = each.value if isinstance(each, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield each.lineno, text.value, place > 0


def first_words(module: Module) -> Iterator[str]:
    """A docstring begins with its subject, or with a verb."""
    for line, text, is_of_field in docstrings(module):
        found = re.match(r"\W*(\w+)", text)
        if found and (found[1] in HEADLESS or (found[1] in QUESTIONS and not is_of_field)):
            yield f"{line}: a docstring begins with {found[1]}: name the actor or the thing"


def test_tree_obeys() -> None:
    found = problems(first_words)
    assert set(found) <= {str(first_words.__doc__)}, "\n".join(found)


@pytest.mark.parametrize("rule", [first_words])
@pytest.mark.parametrize(
    "text",
    [
        '"""What a log keeps."""',
        'def f():\n    """Who asks for it."""',
        'class A:\n    """A thing."""\n    x: int\n    """Of its bytes."""',
        'X = 1\n"""``That`` many."""',
        '"""How a log is kept."""',
        'def f():\n    """Whether it is kept."""',
    ],
)
def test_rule_bites(rule: Rule, text: str) -> None:
    assert list(rule(parse("icecore/a.py", text)))


@pytest.mark.parametrize(
    "text",
    [
        '"""Whatever happens is logged."""',
        'X = 1\n"""Bytes of the log."""',
        'x = "What"',
        'class A:\n    """A wait."""\n    wait_ms: int\n    """How long it is."""',
    ],
)
def test_rule_allows(text: str) -> None:
    assert not list(first_words(parse("icecore/a.py", text)))
