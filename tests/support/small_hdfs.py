"""A real HDFS for tests: a NameNode and a DataNode in one JVM, on loopback, stopped by its user.

It needs a JDK and the jars that ``hdfs/pom.xml`` names (109 MB). With ``ICECORE_HDFS_JARS`` set to
a folder these are looked for there, and fetched into it by Maven when it has none; without it the
tests that need HDFS are skipped.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_ports

VARIABLE = "ICECORE_HDFS_JARS"
_HERE = Path(__file__).parent / "hdfs"
_START_S = 120.0
_STOP_S = 20


@dataclass(frozen=True)
class SmallHdfs:
    """One that runs."""

    url: str
    """URL of WebHDFS; with a folder behind it, the URL of an object store."""
    endpoint: str
    """Address of Hadoop's RPC."""


def jars_folder() -> Path | None:
    """Return the folder where the jars are or shall be; None = no HDFS is wanted."""
    name = os.environ.get(VARIABLE)
    return Path(name).absolute() if name else None


@contextlib.contextmanager
def running_hdfs(folder: Path) -> Iterator[SmallHdfs]:
    """A new one, which keeps its data in ``folder``."""
    jars = jars_folder()
    assert jars is not None
    if not any(jars.glob("*.jar")):
        command = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={jars}"], check=True)
    classes = folder / "classes"
    source = str(_HERE / "SmallHdfs.java")
    subprocess.run(["javac", "-cp", f"{jars}/*", "-d", str(classes), source], check=True)
    [port] = free_ports(1)
    command = ["java", "-cp", f"{jars}/*:{classes}", "SmallHdfs", str(port), str(folder / "data")]
    log = folder / "log"  # all that it says: a pipe that nobody reads would stop it
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
    assert process.stdin is not None
    try:
        rpc = _wait(process, log)
        yield SmallHdfs(f"webhdfs://127.0.0.1:{port}", f"hdfs://127.0.0.1:{rpc}")
    finally:
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """The port of Hadoop's RPC, when it is ready."""
    until = time.monotonic() + _START_S
    while True:
        said = [each for each in log.read_text().splitlines() if each.startswith("ready ")]
        if said:
            return said[0].split()[2]
        assert process.poll() is None and time.monotonic() < until, f"no HDFS: see {log}"
        time.sleep(0.1)
