"""Jars of a system that runs on Java: through Maven into a cache folder, once."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster import Missing

CACHE = Path.home() / ".cache" / "icecore-bench"
DOWNLOAD_S = 900.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>icecore</groupId><artifactId>bench-{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = """
<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>
<version>{version}</version></dependency>
"""


def jars(name: str, version: str, group: str, artifacts: Sequence[str]) -> Path:
    """The folder of artifacts and all they need, downloaded at first use.

    Raises:
        Missing: Maven could not get them.
    """
    cache = CACHE / f"{name}-{version}"
    library = cache / "lib"
    if library.exists():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    pom, partial = cache / "pom.xml", cache / "lib.partial"
    dependencies = [
        _DEPENDENCY.format(group=group, artifact=artifact, version=version)
        for artifact in artifacts
    ]
    pom.write_text(_POM.format(name=name, dependencies="".join(dependencies)))
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={partial}")
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Missing(f"jars of {name}: {str(error.stdout)[-500:]}") from error
    partial.rename(library)
    return library
