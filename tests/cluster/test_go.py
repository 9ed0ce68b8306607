"""A client in another language, made from the documents: it loses nothing while nodes are killed.

Go and the modules that it fetches are needed, else these tests are skipped.
"""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from asyncio.subprocess import Process
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from icecore import Admin, Producer
from icecore.dev import LocalCluster
from tests.cluster.traffic import Log, create, merged, produce, read_all
from tests.support.tier_places import until_tiered

ROOT = Path(__file__).parents[2]
TOPIC = "from-go"
BUILD_S = 300
RUN_S = 90

pytestmark = [
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Go"),
    pytest.mark.timeout(BUILD_S + 2 * RUN_S),  # the first of them waits for the build
]


def go(folder: Path, *command: str) -> None:
    """One step of the build, which must end well."""
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "PROTOS": str(ROOT / "proto"),
        "FORMAT_VECTORS": str(ROOT / "docs/reference/format_vectors.json"),
        "GOBIN": str(folder / "bin"),
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_S
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, built from a copy of its folder."""
    folder = tmp_path_factory.mktemp("go") / "go"
    shutil.copytree(ROOT / "examples" / "go", folder, ignore=shutil.ignore_patterns("pb", "bin"))
    had = subprocess.run(
        ["go", "mod", "download"], cwd=folder, capture_output=True, text=True, timeout=BUILD_S
    )
    if had.returncode:
        pytest.skip(f"Go's modules can't be had: {had.stderr.strip().splitlines()[-1]}")
    go(folder, "./generate.sh")
    go(folder, "go", "vet", "./...")
    go(folder, "go", "test", "./...")
    go(folder, "go", "build", "-o", "icecore-go", ".")
    return folder / "icecore-go"


@dataclass
class Running:
    """The program, and a file for what it prints: a pipe that nobody reads would stop it."""

    process: Process
    out: Path

    async def feed(self, values: list[bytes]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(value + b"\n" for value in values))
        await self.process.stdin.drain()

    async def end(self) -> Log:
        """End the program; return the offset and value of each record that it printed."""
        async with asyncio.timeout(RUN_S):
            _, errors = await self.process.communicate(b"")
        assert self.process.returncode == 0, errors.decode()
        found: Log = defaultdict(list)
        for line in self.out.read_bytes().splitlines():
            record = json.loads(line)
            value = (record["value"] or "").encode()
            found[record["partition"]].append((record["offset"], value))
        return found


async def start(program: Path, cluster: LocalCluster, *command: str) -> Running:
    out = program.parent / "out.jsonl"
    with out.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(str(program), "-bootstrap", cluster.bootstrap, "-timeout", f"{RUN_S}s", *command),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.PIPE,
        )
    return Running(process, out)


def text(start: int, count: int) -> list[bytes]:
    """Lines."""
    return [b"line %08d" % number + bytes([45] * 40) for number in range(start, start + count)]


async def feed(running: Running, is_over: asyncio.Event) -> list[bytes]:
    """Lines, a few at a time, until it is over."""
    given: list[bytes] = []
    while not is_over.is_set():
        given += (lines := text(len(given), 20))
        await running.feed(lines)
        await asyncio.sleep(0.01)
    return given


async def test_it_appends_once_while_nodes_are_killed(
    program: Path, healed_cluster: LocalCluster
) -> None:
    await create(healed_cluster.bootstrap, TOPIC, partitions=6, segment_bytes=64 << 10)
    running = await start(program, healed_cluster, "-batch", "5", "produce", TOPIC)
    is_over = asyncio.Event()
    feeding = asyncio.create_task(feed(running, is_over))
    for node_id in (1, 2, 3):
        await asyncio.sleep(0.5)
        healed_cluster.kill_node(node_id)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(healed_cluster.start_node, node_id)
    is_over.set()
    values = await feeding
    acked = await running.end()
    assert sorted(value for log in acked.values() for _, value in log) == values
    for log in acked.values():
        assert [offset for offset, _ in log] == list(range(len(log)))
        assert [value for _, value in log] == sorted(value for _, value in log)
    assert await read_all(healed_cluster.bootstrap, TOPIC) == acked
    assert await (await start(program, healed_cluster, "fetch", TOPIC)).end() == acked


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_it_reads_what_others_wrote(
    program: Path, healed_cluster: LocalCluster, codec: str
) -> None:
    topic = f"both-{codec}"
    await create(healed_cluster.bootstrap, topic, partitions=3, segment_bytes=64 << 10)
    first = await produce(healed_cluster.bootstrap, topic, text(0, 2_000), compression=codec)
    running = await start(program, healed_cluster, "produce", topic)
    await running.feed(text(2_000, 500))
    whole = merged(first, await running.end())
    assert await (await start(program, healed_cluster, "fetch", topic)).end() == whole
    assert await read_all(healed_cluster.bootstrap, topic) == whole


async def test_it_reads_history_that_no_node_has(program: Path, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", nodes=1, tier_url=(tmp_path / "tier").as_uri()) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic(
                TOPIC, replication_factor=1, min_insync_replicas=1, tier="on", local_retention_ms=0
            )
            whole = await produce(cluster.bootstrap, TOPIC, text(0, 500))
            await until_tiered(admin, TOPIC, is_remote=True)
        assert await (await start(program, cluster, "fetch", TOPIC)).end() == whole


async def test_its_errors_say_what_is_wrong(program: Path, healed_cluster: LocalCluster) -> None:
    for command, expected in ((["fetch", "nothing"], "UNKNOWN_TOPIC"), (["sing", "x"], "sing")):
        given = [str(program), "-bootstrap", healed_cluster.bootstrap, "-timeout", "5s", *command]
        done = await asyncio.to_thread(subprocess.run, given, capture_output=True, text=True)
        assert done.returncode == 1 and expected in done.stderr


async def test_it_prints_each_value_as_it_is(program: Path, healed_cluster: LocalCluster) -> None:
    """A tombstone is no text, and JSON has none for bytes that are no UTF-8."""
    await create(healed_cluster.bootstrap, "any-bytes", partitions=1, segment_bytes=64 << 10)
    values = [None, b"", b"None", b"\xff\0", "é\u2028𝄞<>".encode(), b"\xef\xbb\xbfa", b'"1.10"']
    async with Producer(healed_cluster.bootstrap) as producer:
        await producer.send_batch("any-bytes", values)
    running = await start(program, healed_cluster, "fetch", "any-bytes")
    await running.end()
    found: list[bytes | None] = []
    for line in running.out.read_text("utf-8").split("\n")[:-1]:
        record = json.loads(line)
        if record.get("value_encoding") == "base64":
            found.append(base64.b64decode(record["value"]))
        else:
            found.append(None if record["value"] is None else record["value"].encode())
    assert found == values
    await create(healed_cluster.bootstrap, "any-lines", partitions=1, segment_bytes=1 << 20)
    running = await start(program, healed_cluster, "produce", "any-lines")
    lines = [b"\xff\xfe", b"\xef\xbb\xbfb", "é".encode(), b"x" * 100_000]
    await running.feed(lines)
    await running.end()
    log = await read_all(healed_cluster.bootstrap, "any-lines")
    assert [value for _, value in log[0]] == lines
