"""Starts a program of ours and no other: ``python -P …/launch.py icecore_node --data …``.

``python -m icecore_node`` would take a ``node.py`` of the working directory, or of a folder in
PYTHONPATH, for ours. Here the folder of this file says where our packages are; all other modules
are found as ever, also by PYTHONPATH.

A program that starts servers gives them settings in a file, and an environment that agrees with it.
The file is for people, too: whoever starts a server again by hand starts it with the same settings.
A variable would win over the file. So a server's environment lacks those variables that set what
the program has set.
"""

import json
import os
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

_OURS = frozenset({"icecore", "icecore_replication", "icecore_node", "icecore_coordinator"})
_HOME = Path(__file__).resolve().parents[2]
_ROOTS = [str(_HOME), *(str(_HOME / folder) for folder in ("replication", "node", "coordinator"))]
"""Folders of our packages: side by side when installed, below these folders in a checkout."""


Value: TypeAlias = str | int | float | bool
ServerSettings: TypeAlias = Mapping[str, Value | Mapping[str, Value]]
"""Settings of one kind of process; a mapping among them is a table of settings."""


def command(module: str) -> list[str]:
    """Return the command that runs the module; the program's arguments follow it."""
    return [sys.executable, "-P", str(Path(__file__).resolve()), module]


def as_toml(sections: Mapping[str, ServerSettings]) -> str:
    """The text of a configuration file.

    Args:
        sections: Settings by section, such as ``node``.
    """
    lines = [line for name, values in sections.items() for line in _table(name, values)]
    return "\n".join([*lines, ""])


def _table(name: str, values: ServerSettings) -> Iterator[str]:
    """The lines of one table, then those of the tables in it."""
    yield f"[{name}]"
    tables = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    for key, value in values.items():
        if key not in tables:
            yield f"{key} = {json.dumps(value)}"  # JSON's numbers, booleans and strings are TOML's
    for key, table in tables.items():
        yield from _table(f"{name}.{key}", table)


def environment(section: str, settings: ServerSettings) -> dict[str, str]:
    """The variables of one server: those of this process, but for what its settings say.

    Args:
        section: Of which kind the server is, such as ``node``.
        settings: What the file says to servers of this kind.
    """
    said = {name.upper() for name in _variables(section, settings)}
    found = {name: value for name, value in os.environ.items() if name not in said}
    if folders := found.get("PYTHONPATH"):  # meant as seen from here
        found["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, folders.split(os.pathsep)))
    return {**found, "PYTHONUNBUFFERED": "1"}


def _variables(section: str, settings: ServerSettings) -> Iterator[str]:
    """All names of variables that set one of these settings."""
    for key, value in settings.items():
        yield from (f"icecore_{key}", f"icecore_{section}__{key}")
        if isinstance(value, Mapping):
            yield from (f"icecore_{section}__{key}__{inner}" for inner in value)


class _Ours(MetaPathFinder):
    """Finds our packages beside this one, before anybody else looks for them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, _ROOTS) if name in _OURS else None


if __name__ == "__main__":
    sys.meta_path.insert(0, _Ours())
    del sys.argv[0]
    from icecore.extras import as_one_line  # found by the line above

    with as_one_line(sys.argv[0], "server"):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
