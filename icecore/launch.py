"""Starts a program of ours, ours for certain: ``python -P .../icecore/launch.py node --data …``.

``python -m node`` would take a ``node.py`` of the working directory, or of a folder in PYTHONPATH,
for ours. Here the folder of this file says where our packages are; all other modules are found as
ever, also by PYTHONPATH.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_OURS = frozenset({"icecore", "node", "coordinator", "replication"})
_HOME = str(Path(__file__).resolve().parent.parent)


def command(module: str) -> list[str]:
    """What to run, in front of the program's arguments."""
    return [sys.executable, "-P", str(Path(__file__).resolve()), module]


class _Ours(MetaPathFinder):
    """Finds our packages beside this one, before anybody else looks for them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [_HOME]) if name in _OURS else None


if __name__ == "__main__":
    sys.meta_path.insert(0, _Ours())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
