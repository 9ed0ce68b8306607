"""The command line against real processes: ``icecore dev`` itself, and every command on it."""

import http.client
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from icecore.blocking import Producer
from icecore.cli.app import main
from icecore.dev import METRICS_PORT_OFFSET, LocalCluster
from tests.support.fast import FAST
from tests.support.ports import free_port_block

CLI = [sys.executable, "-m", "icecore.cli"]
DEV_NODES = 2
START_TIMEOUT_S = 60
PAGES = ("/startupz", "/livez", "/readyz", "/")


@dataclass(frozen=True)
class Done:
    """The output of a command."""

    stdout: str
    stderr: str


@dataclass(frozen=True)
class Cli:
    """Runs commands on one cluster: in a process of their own when they read stdin, else here,
    which saves half a second of imports each."""

    bootstrap: str

    def __call__(self, *arguments: str, stdin: str = "", status: int = 0) -> Done:
        if stdin:
            found, done = self._run_process(arguments, stdin)
        else:
            found, done = self._run_here(arguments)
        assert found == status, done.stderr
        assert "Traceback" not in done.stderr
        return done

    def _run_here(self, arguments: tuple[str, ...]) -> tuple[int, Done]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(["-b", self.bootstrap, *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, Done(out.getvalue(), err.getvalue())

    def _run_process(self, arguments: tuple[str, ...], stdin: str) -> tuple[int, Done]:
        done = subprocess.run(
            [*CLI, "-b", self.bootstrap, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, Done(done.stdout, done.stderr)

    def json(self, *arguments: str, **options: Any) -> Any:
        """Return a document's content: the ``items`` of a list, else all of it but the schema."""
        found = json.loads(self(*arguments, **options).stdout)
        assert found.pop("schema") == 1
        return found["items"] if list(found) == ["items"] else found

    def lines(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(*arguments).stdout.splitlines()]


@pytest.fixture(scope="module")
def cli(shared_cluster: LocalCluster) -> Cli:
    return Cli(shared_cluster.bootstrap)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(cli: Cli, closed: str) -> None:
    """As cron and some supervisors start programs."""
    for words in ("topic list", "cluster describe", "fetch nothing-here"):
        command = f"{' '.join(CLI)} -b {cli.bootstrap} {words} {closed}"
        done = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == (3 if "nothing" in words else 0), done.stderr
        assert "Traceback" not in done.stderr


def test_a_key_of_any_bytes(cli: Cli) -> None:
    cli("topic", "create", "any-bytes", "--partitions", "1")
    with Producer(cli.bootstrap) as producer:
        producer.send_and_wait("any-bytes", b"a", key=b"\xff")
    found = subprocess.run(
        [*CLI, "-b", cli.bootstrap, "--json", "query", "any-bytes", "--key", b"\xff"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert b"/w==" in found.stdout


# --- topics ---------------------------------------------------------------------------------------


def test_life_of_a_topic(cli: Cli) -> None:
    made = cli.json("topic", "create", "life", "-p", "2", "--segment-bytes", "8MiB")
    assert made["settings"]["segment_bytes"] == 8 << 20
    assert made["settings"]["replication_factor"] == 3
    assert cli("topic", "create", "life", status=1).stderr.count("\n") == 1
    cli("topic", "create", "life", "--if-not-exists")
    assert "life" in [each["name"] for each in cli.json("topic", "list")]
    described = cli.json("topic", "describe", "life")
    assert [each["partition"] for each in described["partitions"]] == [0, 1]
    assert all(each["leader"] for each in described["partitions"])
    assert cli.json("topic", "alter", "life", "--segment-bytes", "4MiB")
    assert len(cli.json("topic", "add-partitions", "life", "3")["partitions"]) == 3
    cli("topic", "delete", "life", status=2)  # nobody can be asked
    cli("topic", "delete", "lief", status=3)
    left = cli("topic", "delete", "life", "--yes").stderr
    assert cli("topic", "describe", "life", status=3).stderr
    listed = cli.json("topic", "list", "--deleted")
    [kept] = [each for each in listed if each["name"] == "life"]
    assert f"undelete --topic-id {kept['topic_id']}" in left
    assert len(cli.json("topic", "undelete", "life", "--as", "second")["partitions"]) == 3
    cli("topic", "delete", "second", "--now", "--yes")
    cli("topic", "undelete", "--topic-id", kept["topic_id"], status=3)
    cli("topic", "undelete", "--topic-id", "7", status=2)
    cli("topic", "undelete", status=2)


def test_unknown_topics_are_3_at_once(cli: Cli) -> None:
    began = time.monotonic()
    for arguments in (("topic", "describe", "nope"), ("produce", "nope"), ("fetch", "nope")):
        assert "nope" in cli(*arguments, status=3).stderr
    assert time.monotonic() - began < 20


def test_cluster_describe(cli: Cli) -> None:
    state = cli.json("cluster", "describe")
    assert [each["node_id"] for each in state["nodes"]] == [1, 2, 3]
    assert {each["state"] for each in state["nodes"]} == {"up"}


def test_settings_of_a_node_that_runs(cli: Cli) -> None:
    rows = {each["setting"]: each for each in cli.json("config", "show", "--node", "2")}
    assert (rows["node_id"]["value"], rows["node_id"]["from"]) == (2, "flag --node-id")
    assert rows["log_level"] == {"setting": "log_level", "value": "info", "from": "default"}
    calm = "timing.digest_calm_ms"
    assert rows[calm]["from"] == "environment variable ICECORE_NODE__TIMING__DIGEST_CALM_MS"
    assert str(rows[calm]["value"]) == FAST["ICECORE_NODE__TIMING__DIGEST_CALM_MS"]
    assert "there are 1, 2, 3" in cli("config", "show", "--node", "9", status=1).stderr


# --- records --------------------------------------------------------------------------------------


def test_lines_in_and_out(cli: Cli, tmp_path: Path) -> None:
    cli("topic", "create", "lines", "-p", "3")
    lines = [f"k{i % 7}=v{i}" for i in range(500)]
    path = tmp_path / "input.txt"
    path.write_text("\n".join(lines[:300]))
    sent = cli.json(
        *("produce", "lines", str(path), "-", "-k", "="), stdin="\n".join(lines[300:]) + "\n"
    )
    assert (sent["records"], sent["file"], sent["through_line"]) == (500, "stdin", 200)
    rows = cli.lines("fetch", "lines")
    assert sorted(f"{row['key']}={row['value']}" for row in rows) == sorted(lines)
    for key in {row["key"] for row in rows}:
        numbers = [int(row["value"][1:]) for row in rows if row["key"] == key]
        assert numbers == sorted(numbers)
    assert len(cli.lines("fetch", "lines", "-n", "7")) == 7


def test_ndjson_round_trip_and_positions(cli: Cli) -> None:
    cli("topic", "create", "one", "-p", "1")
    cli("topic", "create", "two", "-p", "1")
    rows = [
        {"t": f"2013-01-01T0{i}:00:00Z", "id": f"N{i}", "tag": ["a", f"b{i}"]} for i in range(9)
    ]
    cli(
        *("produce", "one", "-f", "ndjson", "--key-field", "id", "--tag-field", "tag"),
        *("--time-field", "t", "--compression", "zstd"),
        stdin="".join(json.dumps(row) + "\n" for row in rows),
    )
    first = cli("fetch", "one").stdout
    found = [json.loads(line) for line in first.splitlines()]
    assert [json.loads(each["value"]) for each in found] == rows
    assert [each["offset"] for each in found] == list(range(9))
    assert found[3]["tags"] == ["a", "b3"]
    assert found[3]["timestamp"] == "2013-01-01T03:00:00.000Z"
    cli("produce", "two", "-f", "records", stdin=first)
    again = cli.lines("fetch", "two")
    for each in (*found, *again):
        del each["append_timestamp"]
    assert again == found
    assert [each["offset"] for each in cli.lines("fetch", "one", "--from", "5")] == [5, 6, 7, 8]
    assert not cli.lines("fetch", "one", "--from", "latest")
    assert len(cli.lines("fetch", "one", "--from", "2013-01-01")) == 9
    assert not cli.lines("fetch", "one", "--from", "2100-01-01")


def test_example_of_the_readme(cli: Cli) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    code = code.replace("127.0.0.1:7400", cli.bootstrap)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "b'N14228' b'{\"dest\": \"IAH\"}' ('UA', 'EWR')" in done.stdout


def test_bad_input_is_named_and_follow_sees_new_records(cli: Cli) -> None:
    cli("topic", "create", "bad", "-p", "1")
    error = cli("produce", "bad", "-f", "ndjson", stdin='{"a": 1}\nnope\n', status=1).stderr
    assert "stdin, line 2" in error
    follower = subprocess.Popen(
        [*CLI, "-b", cli.bootstrap, "-q", "fetch", "bad", "--from", "latest", "--follow"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_interruptible,
    )
    try:
        assert follower.stdout is not None
        deadline = time.monotonic() + 60
        while True:  # the follower starts at a moment nobody knows: produce until it sees one
            cli("produce", "bad", stdin="hello\n")
            ready = _readable(follower.stdout.fileno(), 0.5)
            if ready or time.monotonic() > deadline:
                break
        assert json.loads(follower.stdout.readline())["value"] == "hello"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(60) == 0
    finally:
        follower.kill()
        follower.communicate()


def _interruptible() -> None:
    """Shells make background jobs ignore SIGINT, and whatever those start inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _readable(descriptor: int, timeout_s: float) -> bool:
    return bool(select.select([descriptor], [], [], timeout_s)[0])


def wait_sealed(cli: Cli, topic: str) -> list[dict[str, Any]]:
    """The segments of a topic once the first is sealed."""
    deadline = time.monotonic() + 60
    while True:
        rows: list[dict[str, Any]] = cli.json("segment", "list", topic)
        if rows[0]["state"] == "sealed" or time.monotonic() > deadline:
            return rows


def test_segments(cli: Cli) -> None:
    cli("topic", "create", "seal", "-p", "1")
    cli("produce", "seal", stdin="a\nb\n")
    assert cli.json("topic", "roll", "seal")["rolled"] == 1
    rows = wait_sealed(cli, "seal")
    assert [(row["state"], row["base_offset"]) for row in rows] == [("sealed", 0), ("active", 2)]
    assert rows[0]["end_offset"] == 2
    assert rows[0]["copies"] == 3


# --- icecore dev ----------------------------------------------------------------------------------


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    members = range(DEV_NODES + 1)
    port = free_port_block([*members, *(METRICS_PORT_OFFSET + each for each in members)])
    folder = tmp_path / "dev"
    process = _start_dev(port, folder)
    try:
        yield process, port, folder
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def _start_dev(port: int, folder: Path) -> subprocess.Popen[str]:
    command = [*CLI, "dev", "--nodes", str(DEV_NODES), "--port", str(port), "--data", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), True)
    seen = ""
    while "ready; stop with" not in seen:
        line = process.stderr.readline()
        if not line:
            process.communicate(timeout=60)
            raise AssertionError(seen)
        seen += line
    return process


def test_dev_runs_stops_in_order_and_continues(
    dev: tuple[subprocess.Popen[str], int, Path],
) -> None:
    process, port, folder = dev
    cli = Cli(f"127.0.0.1:{port}")
    cli("topic", "create", "kept", "-p", "2", "--replicas", str(DEV_NODES))
    cli("produce", "kept", stdin="a\nb\nc\n")
    monitors_see_all(port, port + 1, port + 2)
    taken = cli("dev", "--data", str(folder), "--port", str(port), status=1).stderr
    assert "in use by another cluster" in taken
    pids = json.loads((folder / "pids.json").read_text())
    assert sorted(pids) == ["coordinator", "node-1", "node-2"]
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert "stopped" in error
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    report = cli.json("segment", "verify", str(folder / "node-1"))
    assert report["damaged"] == 0
    assert len(report["replicas"]) == 2
    again = _start_dev(port, folder)
    try:
        assert sorted(row["value"] for row in cli.lines("fetch", "kept")) == ["a", "b", "c"]
    finally:
        again.terminate()
        _, error = again.communicate(timeout=60)
    assert again.returncode == 0, error


def test_dev_survives_dead_processes_and_restarts_those_that_are_asked_for(
    dev: tuple[subprocess.Popen[str], int, Path],
) -> None:
    process, port, folder = dev
    cli = Cli(f"127.0.0.1:{port}")
    assert process.stderr is not None
    cli("topic", "create", "t", "-p", "1", "--replicas", str(DEV_NODES))
    for name in ("coordinator", "node-2"):
        os.kill(json.loads((folder / "pids.json").read_text())[name], signal.SIGKILL)
        line = process.stderr.readline()
        assert f"{name} was killed by signal 9" in line
        assert f"icecore dev restart {name} --data {folder}" in line
        cli("dev", "restart", name, "--data", str(folder))
        assert f"{name} was started again" in process.stderr.readline()
    assert cli.json("cluster", "health", "--wait", "60")["verdict"] == "healthy"
    cli("dev", "restart", "node-1", "--data", str(folder))  # one that runs
    assert f"there are {', '.join(('coordinator', 'node-1', 'node-2'))}" in (
        cli("dev", "restart", "node-3", "--data", str(folder), status=1).stderr
    )
    os.kill(json.loads((folder / "pids.json").read_text())["node-2"], signal.SIGKILL)
    process.terminate()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1, error
    assert "no `icecore dev` runs" in (
        cli("dev", "restart", "node-1", "--data", str(folder), status=1).stderr
    )


def monitors_see_all(coordinator: int, first: int, second: int) -> None:
    """Expected entries of two partitions that both nodes have."""
    ports = [METRICS_PORT_OFFSET + each for each in (coordinator, first, second)]
    for each in ports:
        assert [_page(each, path)[0] for path in PAGES] == [200, 200, 200, 404]
    shown = _page(ports[0], "/metrics")[1]
    assert 'icecore_cluster_nodes{state="up"} 2.0' in shown
    assert "icecore_cluster_partitions 2.0" in shown
    leads = [_page(each, "/metrics")[1].count("icecore_is_leader{") for each in ports[1:]]
    assert leads == [2, 2]
    lags = [_page(each, "/metrics")[1].count("icecore_replica_lag_offsets{") for each in ports[1:]]
    assert sum(lags) == 2  # each leader has one follower
    deadline = time.monotonic() + 60
    while grpc_health(f"127.0.0.1:{first}") != {"": 1, "liveness": 1, "readiness": 1}:
        assert time.monotonic() < deadline  # it is told so within half a second


def _page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def grpc_health(address: str) -> dict[str, int]:
    """Return each service's status as gRPC's own health service reports it; 1 = serving."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return {
            name: stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20).status
            for name in ("", "liveness", "readiness")
        }


def test_verify_finds_flipped_bits(tmp_path: Path) -> None:
    """In a sealed segment, and in an unsealed one before other batches."""
    with LocalCluster(tmp_path, nodes=1) as cluster:
        cli = Cli(cluster.bootstrap)
        cli("topic", "create", "t", "-p", "1")
        with Producer(cluster.bootstrap) as producer:
            for number in range(2):
                producer.send("t", b"%d" % number)
            producer.flush()
            cli("topic", "roll", "t")
            wait_sealed(cli, "t")
            for number in range(2, 4):
                producer.send("t", b"%d" % number).result(60)  # a batch each
        assert cluster.stop() == []
    data = tmp_path / "node-1"
    report = cli.json("segment", "verify", str(data))
    found = [(each["state"], each["batches"]) for each in report["replicas"]]
    assert found == [("sealed", 1), ("confirmed", 2)]
    for path in (data / "segments").rglob("*.log"):
        content = bytearray(path.read_bytes())
        content[4096 + 160] ^= 1
        path.write_bytes(content)
    report = cli.json("segment", "verify", str(data), status=1)
    assert report["damaged"] == 2
    assert "behind it, from offset 3" in report["replicas"][1]["problem"]
    assert "not a node's data folder" in cli("segment", "verify", str(tmp_path), status=1).stderr
