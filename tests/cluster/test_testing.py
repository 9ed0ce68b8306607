"""The fixtures of ``icecore.testing`` as a user's tests take them, in a pytest of their own."""

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = 'pytest_plugins = ["icecore.testing.fixtures"]\n'
TESTS = """
import pytest
from icecore.blocking import Admin, Consumer, Producer

seen = []

@pytest.fixture
def icecore_topic_settings():
    return {"partitions": 2}

@pytest.mark.parametrize("n", [1, 2])
def test_orders(icecore_bootstrap, icecore_topic, n):
    seen.append((icecore_bootstrap, icecore_topic))
    with Producer(icecore_bootstrap) as producer:
        assert producer.send(icecore_topic, b"%d" % n).result(30).partition in (0, 1)
    with Consumer(icecore_bootstrap, icecore_topic, start="earliest", stop_at_end=True) as consumer:
        assert [each.value for each in consumer] == [b"%d" % n]

def test_one_cluster_and_a_topic_for_each(icecore_cluster, icecore_bootstrap):
    assert len({at for at, _ in seen}) == 1 and len({topic for _, topic in seen}) == 2
    assert icecore_cluster.addresses.keys() == {1}
    with Admin(icecore_bootstrap) as admin:
        assert not {topic for _, topic in seen} & {each.name for each in admin.describe_topics()}
"""


def test_a_user_gets_a_cluster_and_topics(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_orders.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "temporary")],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
