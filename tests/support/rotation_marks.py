"""Whole tests take turns: ``@pytest.mark.every(3)`` runs a test in one rotation of three.

The number of the rotation (``tests/support/rotation.py``) chooses. ``turn=1`` gives a test a place
of its own among the three; without it the name of the test decides. A test that is asked for by its
name (``pytest file.py::test``) runs in any case. Tests that waited for their turn are counted as
deselected, and named at the end of the run, also where several processes share it.
"""

import ast
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import rotation

LEFT_OUT = pytest.StashKey[set[str]]()
NAMED_MAX = 40


def turn_of(key: str, every: int, turn: int | None) -> int:
    """The turn of a test among ``every``."""
    return turn % every if turn is not None else zlib.crc32(key.encode()) % every


def bounds(every: int, turn: int | None = None) -> tuple[int, int | None]:
    """The arguments of a mark.

    Raises:
        ValueError: ``every`` is below 1.
    """
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"mark every({every!r}): give a whole number from 1 on")
    return every, turn


def is_due(item: pytest.Item) -> bool:
    """Return whether a test has its turn; the nearest mark counts."""
    mark = item.get_closest_marker("every")
    if mark is None:
        return True
    every, turn = bounds(*mark.args, **mark.kwargs)
    key = item.nodeid.partition("[")[0]
    return rotation.current().has_turn(every, turn_of(key, every, turn))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what waits for its turn."""
    if any("::" in argument for argument in config.args):
        return
    waiting = [item for item in items if not is_due(item)]
    if waiting:
        config.stash.setdefault(LEFT_OUT, set()).update(item.nodeid for item in waiting)
        config.hook.pytest_deselected(items=waiting)
        items[:] = [item for item in items if is_due(item)]


def hand_over(config: pytest.Config) -> None:
    """A worker process tells the one that prints what it left out."""
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["left_out"] = sorted(config.stash.get(LEFT_OUT, set()))


def take_over(config: pytest.Config, output: dict[str, Any]) -> None:
    """Take what a worker process left out; all of them leave out the same."""
    config.stash.setdefault(LEFT_OUT, set()).update(output.get("left_out", ()))


def summary(config: pytest.Config) -> Iterator[str]:
    """The last lines of a run: the number, and which tests waited for their turn."""
    number = rotation.current()
    yield (
        f"rotation {number}: `python -m tests.support.rotation` prints its part of each list;"
        f" {rotation.VARIABLE}={number.number} repeats it, {rotation.ALL!r} leaves nothing out"
    )
    left_out = sorted(config.stash.get(LEFT_OUT, set()))
    if left_out:
        yield f"{len(left_out)} tests waited for their turn:"
        yield from (f"  {each}" for each in left_out[:NAMED_MAX])
        if len(left_out) > NAMED_MAX:
            yield f"  and {len(left_out) - NAMED_MAX} more"


def marked_tests(path: Path) -> Iterator[tuple[str, int, int | None]]:
    """(node id, every, turn) of the marked tests of one file, as its text says."""
    tree = ast.parse(path.read_text())
    file = path.relative_to(rotation.TESTS.parent).as_posix()
    yield from _marked(tree, file, _of_module(tree))


def _marked(
    node: ast.Module | ast.ClassDef, key: str, mark: tuple[int, int | None] | None
) -> Iterator[tuple[str, int, int | None]]:
    for each in node.body:
        if isinstance(each, ast.ClassDef):
            own = _of_decorators(each.decorator_list) or mark
            yield from _marked(each, f"{key}::{each.name}", own)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            own = _of_decorators(each.decorator_list) or mark
            if own and each.name.startswith("test"):
                yield (f"{key}::{each.name}", *own)


def _of_module(tree: ast.Module) -> tuple[int, int | None] | None:
    for each in tree.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark":
            value = each.value
            return _of_decorators(value.elts if isinstance(value, ast.List) else [value])
    return None


def _of_decorators(found: list[ast.expr]) -> tuple[int, int | None] | None:
    for each in found:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.every":
            values = [ast.literal_eval(argument) for argument in each.args]
            named = {word.arg or "": ast.literal_eval(word.value) for word in each.keywords}
            return bounds(*values, **named)
    return None
