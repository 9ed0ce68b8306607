"""Production code without one of its guards: does a test notice?

``python -m tests.support.guards order_checks:check_promise path::test_name`` runs the test with
that function doing nothing, whoever has imported it. It answers None, as functions do that raise
when something is wrong. One that says why in a text answers an empty text, one that lists what is
wrong or known an empty list or mapping, one that says whether something is right True. One that
shortens a text returns it as it came.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, get_origin

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("icecore", "replication", "node", "coordinator")
TEXT = "told"
"""First parameter of functions that shorten a text."""


@lru_cache(maxsize=1)
def _modules() -> tuple[str, ...]:
    """Names of all modules of production code."""
    found = []
    for package in PACKAGES:
        base = ROOT if package == "icecore" else ROOT / package
        start = base / package if package == "icecore" else base
        found += [
            ".".join(path.relative_to(base).with_suffix("").parts) for path in start.rglob("*.py")
        ]
    return tuple(found)


def find_function(name: str) -> Callable[..., Any] | None:
    """Return the function of a name like ``order_checks:check_promise``; None when there is not
    exactly one."""
    end, _, path = name.partition(":")
    found = []
    for module in _modules():
        if f".{module}".endswith(f".{end}"):
            holder: Any = importlib.import_module(module)
            for part in path.split("."):
                holder = getattr(holder, part, None)
            if inspect.isfunction(holder):
                found.append(holder)
    return found[0] if len(found) == 1 else None


def take_away(function: Callable[..., Any]) -> None:
    """Let a function do nothing from now on, in all modules that have imported it."""

    async def nothing_later(*_: Any, **__: Any) -> None:
        return None

    if inspect.iscoroutinefunction(function):
        chosen: Callable[..., Any] = nothing_later
    else:
        told = inspect.signature(function).return_annotation
        chosen = _INSTEAD.get(get_origin(told) or told, _nothing)
        if told is str and next(iter(inspect.signature(function).parameters)) == TEXT:
            chosen = _as_it_came
    function.__code__ = chosen.__code__
    function.__defaults__, function.__kwdefaults__ = None, None


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_reason(*_: Any, **__: Any) -> str:
    return ""


def _none_of_it(*_: Any, **__: Any) -> list[Any]:
    return []


def _nothing_known(*_: Any, **__: Any) -> dict[Any, Any]:
    return {}


def _is_right(*_: Any, **__: Any) -> bool:
    return True


def _as_it_came(text: str, *_: Any, **__: Any) -> str:
    return text


_INSTEAD = {str: _no_reason, list: _none_of_it, dict: _nothing_known, bool: _is_right}
"""Functions that answer as if nothing was wrong, by the type of the answer."""


def path_of(name: str) -> str:
    """Return what pytest takes for ``test_file::test_name``."""
    stem, _, test = name.partition("::")
    [path] = [
        each for each in (ROOT / "tests").rglob(f"{stem}.py") if f"def {test}(" in each.read_text()
    ]
    return f"{path.relative_to(ROOT)}::{test}"


def main(arguments: list[str]) -> int:
    """Run a test without a guard; the exit status is pytest's."""
    guard, test = arguments
    function = find_function(guard)
    if function is None:
        print(f"there is not exactly one function {guard}", file=sys.stderr)
        return 2
    take_away(function)
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", test]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
