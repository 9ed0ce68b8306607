"""A client with the oldest libraries that pyproject.toml accepts, beside servers with the newest.

``ICECORE_OLDEST=1`` makes an environment from the wheel with exactly the lower bounds of a plain
install and of the command line (it needs a package index), and runs a client in it. Without it only
what the documents say of these bounds is compared.
"""

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from icecore.dev import LocalCluster

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDS_INDEX = pytest.mark.skipif(
    os.environ.get("ICECORE_OLDEST") != "1", reason="installs old packages: ICECORE_OLDEST=1"
)
ROUND_TRIP = """
import sys
import icecore.v1.admin_pb2_grpc, icecore.v1.data_pb2_grpc
import grpc
from icecore.blocking import Admin, Consumer, Lookup, Producer
from icecore.errors import TopicExistsError

at, topic = sys.argv[1:]
icecore.v1.data_pb2_grpc.DataServiceStub(grpc.insecure_channel(at))
with Admin(at) as admin:
    admin.create_topic(topic, partitions=3, replication_factor=3)
    try:
        admin.create_topic(topic, partitions=4)
    except TopicExistsError as error:
        assert topic in str(error)
    else:
        sys.exit("the refusal got lost")
for compression in ("none", "lz4", "zstd"):
    with Producer(at, compression=compression) as producer:
        sent = [producer.send(topic, b"%d" % n, key=b"k%d" % (n % 5)) for n in range(100)]
        assert len({(each.result(30).partition, each.result(30).offset) for each in sent}) == 100
        print(compression, flush=True)
        assert sys.stdin.readline() == "on\\n"
with Consumer(at, topic, start="earliest", stop_at_end=True) as consumer:
    values = sorted(int(each.value) for each in consumer)
assert values == sorted(list(range(100)) * 3)
with Lookup(at, topic) as lookup:
    page = lookup.find(keys=[b"k3"], max_count=100)
    assert page.complete and len(page.records) == 60
print("done", flush=True)
"""
"""Each codec; the caller kills a node after the first."""


def bounds() -> dict[str, str]:
    """Name to lower bound, of what a client with a command line needs on this Python."""
    texts = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["cli"]]
    needed = [each for each in map(Requirement, texts) if not each.marker or each.marker.evaluate()]
    return {each.name: str(each.specifier).removeprefix(">=") for each in needed}


def test_documents_name_the_bounds() -> None:
    found = bounds()
    assert all(re.fullmatch(r"[0-9.]+", version) for version in found.values()), found
    text = (ROOT / "docs/operate/upgrade.md").read_text()
    for name in ("protobuf", "grpcio"):
        assert f"`{name}` {found[name]}" in text


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and the oldest libraries."""
    folder = tmp_path_factory.mktemp("oldest")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=True, symlinks=True)
    python = folder / "env/bin/python"
    pins = [f"{name}=={version}" for name, version in bounds().items()]
    command = [str(python), "-m", "pip", "install", "--quiet", f"{wheel}[cli]", *pins]
    subprocess.run(command, check=True)
    return python


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=3) as cluster:
        yield cluster


@NEEDS_INDEX
@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_a_round_trip_over_a_killed_node(
    oldest: Path, cluster: LocalCluster, transport: str
) -> None:
    with subprocess.Popen(
        [oldest, "-c", ROUND_TRIP, cluster.bootstrap, transport],
        env={**os.environ, "ICECORE_TRANSPORT": transport},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdin is not None and client.stdout is not None
        for said in ("none", "lz4", "zstd"):
            assert client.stdout.readline() == said + "\n"
            if said == "none":
                cluster.kill_node(2)
            client.stdin.write("on\n")
            client.stdin.flush()
        assert client.stdout.readline() == "done\n"
    assert client.returncode == 0
    cluster.start_node(2)


@NEEDS_INDEX
def test_the_command_line(oldest: Path, cluster: LocalCluster) -> None:
    def icecore(*words: str, given: str = "") -> str:
        command = [str(oldest.with_name("icecore")), "--bootstrap", cluster.bootstrap, *words]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
        return done.stdout

    icecore("topic", "create", "typed", "--partitions", "1")
    icecore("produce", "typed", given="one\ntwo\n")
    assert "two" in icecore("fetch", "typed", "--from", "earliest", "--max-records", "2")
    assert "typed" in icecore("topic", "list") and "typed" in icecore("topic", "describe", "typed")
    assert "Usage" in icecore("--help") and "Examples" in icecore("produce", "--help")
