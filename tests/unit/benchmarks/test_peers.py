"""The parts of the compared systems that need none of them: names, configuration, refusals."""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import client, run
from benchmarks.cluster import Missing
from benchmarks.harness.cases import IN_FLIGHT_BYTES, OURS, Case
from benchmarks.harness.systems import PEERS, Systems
from benchmarks.peers import nats
from benchmarks.peers.processes import Processes, free_ports

# --- all of them ----------------------------------------------------------------------------------


def test_every_system_has_a_client() -> None:
    assert set(run.SYSTEMS) == {*OURS, *PEERS} == set(client.CLIENTS)


def test_a_peer_has_the_name_it_is_asked_for(tmp_path: Path) -> None:
    assert {name: peer(tmp_path).name for name, peer in PEERS.items()} == {n: n for n in PEERS}


@pytest.mark.parametrize(
    ("name", "case", "expected"),
    [
        ("kafka", Case("produce"), ""),
        ("kafka", Case("produce", acks="quorum"), "acks=quorum"),
        ("nats", Case("mixed", partitions=256, rf=1), ""),
        ("nats", Case("produce", acks="leader"), "acks=leader"),
        ("nats", Case("produce", partitions=1024), "room for 1,024 streams"),
    ],
)
def test_a_peer_says_what_it_lacks_for_a_case(
    tmp_path: Path, name: str, case: Case, expected: str
) -> None:
    lack = PEERS[name](tmp_path).lacks(case)
    assert lack.startswith(expected) and bool(lack) == bool(expected)


def test_ports_differ() -> None:
    assert len(set(free_ports(6))) == 6


def test_a_server_that_ends_by_itself_says_why_and_is_not_stopped_twice(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("sleeper", [sys.executable, "-c", "import time; time.sleep(600)"])
    assert not processes.have_ended()
    processes.start("failing", [sys.executable, "-c", "raise SystemExit('no such disk')"])
    while not processes.have_ended():
        time.sleep(0.01)
    assert processes.complaint() == "no such disk\n"
    processes.stop()
    assert processes.pids == {}


# --- NATS -----------------------------------------------------------------------------------------


def _configs(folder: Path, flush: str) -> dict[str, str]:
    return nats.config_texts(folder, {"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 5, "c": 6}, flush)


def test_nats_servers_flush_before_the_ack_where_that_is_wanted(tmp_path: Path) -> None:
    assert all("sync_interval: always" in text for text in _configs(tmp_path, "sync").values())
    assert not any("sync_interval" in text for text in _configs(tmp_path, "async").values())


def test_nats_servers_know_each_other_and_share_nothing(tmp_path: Path) -> None:
    texts = _configs(tmp_path, "sync")
    for name, port, route_port in (("a", 1, 4), ("b", 2, 5), ("c", 3, 6)):
        text = texts[name]
        assert f'listen: "127.0.0.1:{port}"' in text
        assert f'listen: "127.0.0.1:{route_port}"' in text
        assert f'store_dir: "{tmp_path}/data-{name}"' in text
        assert all(f'"nats://127.0.0.1:{each}"' in text for each in (4, 5, 6))


def test_nats_takes_all_bytes_in_flight_into_one_stream(tmp_path: Path) -> None:
    (line,) = [line for line in _configs(tmp_path, "sync")["a"].splitlines() if "buffered" in line]
    assert int(line.split()[1]) * 100 >= IN_FLIGHT_BYTES - 100


@pytest.mark.skipif(nats.binary() is None, reason="nats-server is not installed")
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_nats_accepts_its_configuration(tmp_path: Path, flush: str) -> None:
    config = tmp_path / "server.conf"
    config.write_text(_configs(tmp_path, flush)["a"])
    subprocess.run([str(nats.binary()), "-t", "-c", str(config)], check=True, timeout=60)


def test_each_partition_is_a_stream() -> None:
    assert nats.stream_names("t", 3) == ["t-0", "t-1", "t-2"]


def test_keys_spread_over_partitions_and_stay_where_they_are() -> None:
    keys = [number.to_bytes(8, "big") for number in range(16_000)]
    found = Counter(nats.partition_of(key, 16) for key in keys)
    assert set(found) == set(range(16))
    assert max(found.values()) < 1.2 * min(found.values())
    assert found == Counter(nats.partition_of(key, 16) for key in keys)


def test_an_absent_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool, path=None: None)
    with (
        Systems(tmp_path, lambda system: None) as systems,
        pytest.raises(Missing, match="nats-server"),
    ):
        systems.get("nats", 3)
