"""Install the wheel of a release into empty environments, as a user does, and use it.

    python scripts/check_release.py WHEEL PYTHON … [--spark]

For each Python: a plain install is a client, and says what the command line needs; ``[server]``
runs a cluster that a client writes to and reads; ``[spark]`` (with ``--spark``) reads it as a
DataFrame. It asks a package index, so no test of `make test` does it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CLIENT = "import icecore.blocking as b; print(b.Producer, b.Consumer, b.Admin, b.Lookup)"
ROUND_TRIP = """
import sys
from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster

def main():
    with LocalCluster(sys.argv[1], nodes=2) as cluster:
        at = cluster.bootstrap
        with Admin(at) as admin:
            admin.create_topic("t", partitions=2)
        with Producer(at) as producer:
            sent = [producer.send("t", b"%d" % n, key=b"k%d" % n) for n in range(20)]
            assert all(each.result(30).durable_copies >= 1 for each in sent)
        with Consumer(at, "t", start="earliest", stop_at_end=True) as consumer:
            assert sorted(int(each.value) for each in consumer) == list(range(20))
        {then}
    print("done")

main()
"""
SPARK = """
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").getOrCreate()
        frame = spark.read.format("icecore").option("bootstrap", at).option("topic", "t").load()
        assert frame.count() == 20
        spark.stop()
"""


def main() -> None:
    """Check each Python, or end with the first command that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    wheel = given.wheel.resolve()
    for python in given.pythons:
        version = run([python, "-c", "import sys; print(sys.version.split()[0])"]).strip()
        with tempfile.TemporaryDirectory() as folder:
            check(wheel, python, Path(folder), has_spark=given.spark)
        print(f"Python {version}: {wheel.name} works", flush=True)


def check(wheel: Path, python: str, folder: Path, *, has_spark: bool) -> None:
    """Check one Python."""
    environment = folder / "env"
    run([python, "-m", "venv", str(environment)])
    bin_ = environment / "bin"
    pip = [str(bin_ / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, str(wheel)])
    run([str(bin_ / "python"), "-c", CLIENT], cwd=folder)
    told = subprocess.run([bin_ / "icecore", "topic", "list"], capture_output=True, text=True)
    assert told.returncode == 1 and "pip install 'icecore[cli]'" in told.stderr, told
    extras = "server,spark" if has_spark else "server"
    run([*pip, f"{wheel}[{extras}]"])
    for program in ("icecore", "icecore-node", "icecore-coordinator"):
        run([str(bin_ / program), "--help"], cwd=folder)
    text = ROUND_TRIP.replace("{then}", SPARK.strip() if has_spark else "pass")
    (folder / "round_trip.py").write_text(text)
    # As in an activated environment: Spark starts the `python3` of PATH.
    path = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    run(["python3", "round_trip.py", str(folder / "cluster")], cwd=folder, path=path)


def run(command: list[str], cwd: Path | None = None, path: str = "") -> str:
    """Run a command with no environment of ours. Returns what it printed; ends when it failed."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR", "PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["PATH"] = path or environment["PATH"]
    command = [shutil.which(command[0], path=environment["PATH"]) or command[0], *command[1:]]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
