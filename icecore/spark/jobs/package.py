"""Builds the files to ship to Spark clusters that have the dependencies, but not this package.

A zip for ``--py-files``, and the file that spark-submit runs. Dependencies are native and can't
travel like that: docs/spark-jobs.md says which they are.
"""

import zipfile
from pathlib import Path
from typing import Final

import icecore
import pyspark_icecore
from icecore.errors import ConfigurationError

ZIP: Final = "icecore-spark.zip"
SCRIPT: Final = "icecore_jobs.py"
_TEXT: Final = '''"""For spark-submit, beside --py-files icecore-spark.zip: the jobs of icecore."""

import sys

from icecore.spark.jobs.__main__ import run

sys.exit(run(sys.argv[1:]))
'''
_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""Time of each file in the zip, so that the same code makes the same bytes."""


def package(folder: Path) -> tuple[Path, Path]:
    """Write both files: where they are.

    Raises:
        ConfigurationError: This package was itself imported from a zip; or the folder can't be
            written to.
    """
    archive, script = folder / ZIP, folder / SCRIPT
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for module in (icecore, pyspark_icecore):
                _add(file, Path(str(module.__file__)).parent)
        script.write_text(_TEXT)
    except OSError as error:
        raise ConfigurationError(f"{folder} can't be written to: {error}") from error
    return archive, script


def _add(file: zipfile.ZipFile, root: Path) -> None:
    paths = sorted(root.rglob("*.py"))
    if not paths:
        raise ConfigurationError(f"{root} is no folder with Python files: install the package")
    for path in paths:
        name = path.relative_to(root.parent).as_posix()
        info = zipfile.ZipInfo(name, _TIME)
        info.compress_type = zipfile.ZIP_DEFLATED
        file.writestr(info, path.read_bytes())
