"""Entry points of the servers, which say in one line what is not installed.

They are here, since importing the servers' own packages is what fails.
"""

import importlib
import sys

from icecore.extras import as_one_line


def node() -> None:
    """``icecore-node``."""
    _run("icecore-node", "icecore_node.__main__")


def coordinator() -> None:
    """``icecore-coordinator``."""
    _run("icecore-coordinator", "icecore_coordinator.__main__")


def _run(program: str, module: str) -> None:
    with as_one_line(program, "server"):
        sys.exit(importlib.import_module(module).main())
