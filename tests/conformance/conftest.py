"""A disk that can be filled (a small tmpfs, where this user may mount one), and a store on S3."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore_node.remote.store.obstore_store import StoreSettings
from tests.support.s3 import BUCKET, REGION, S3Server, s3_credentials
from tests.support.s3_servers import SERVERS

SMALL_DISK_BYTES = 48 << 20
"""RocksDB alone preallocates 17 MiB of it."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "none", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, timeout=10)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=10)


@pytest.fixture
def s3(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> StoreSettings:
    """Settings of a store with a prefix of its own on ``s3_server``."""
    return prefix_on(s3_server, request, monkeypatch)


@pytest.fixture(params=["folder", *SERVERS])
def store_settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StoreSettings:
    """Settings of a local folder, and of a prefix on each S3 server in turn."""
    if request.param == "folder":
        return StoreSettings(url=f"file://{tmp_path}/tier")
    return prefix_on(request.getfixturevalue(request.param), request, monkeypatch)


def prefix_on(
    server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> StoreSettings:
    """Settings for a prefix that only this test uses."""
    for name, value in s3_credentials().items():
        monkeypatch.setenv(name, value)
    return StoreSettings(
        url=f"s3://{BUCKET}/{abs(hash(request.node.nodeid))}",
        region=REGION,
        endpoint=server.endpoint,
        retries_max=1,
        retry_ms_max=2000,
    )
