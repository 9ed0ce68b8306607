"""The probes of a node's process while it can't join a cluster: it lives, and must not be ended."""

import contextlib
import http.client
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.ports import free_port_block


def test_a_node_without_a_coordinator_has_started_lives_and_is_not_ready(tmp_path: Path) -> None:
    port = free_port_block(range(2))
    command = [sys.executable, "-m", "icecore_node", "--data", str(tmp_path), "--node-id", "1"]
    command += ["--coordinator", f"127.0.0.1:{port}", "--metrics", f"127.0.0.1:{port + 1}"]
    node = subprocess.Popen(command)
    try:
        assert _until(port + 1, "/startupz", 200) == "ok\n"
        assert _page(port + 1, "/livez") == (200, "ok\n")
        status, why = _page(port + 1, "/readyz")
        assert status == 503 and "has not heard of it" in why
        assert _page(port + 1, "/metrics")[0] == 200
        assert node.poll() is None
    finally:
        node.send_signal(signal.SIGTERM)
        assert node.wait(30) == 0


def _until(port: int, path: str, status: int) -> str:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            found, text = _page(port, path)
            if found == status:
                return text
        time.sleep(0.05)
    raise AssertionError(f"{path} did not answer {status} within 30 s")


def _page(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
