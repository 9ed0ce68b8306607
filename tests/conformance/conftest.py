"""A disk that can be filled (a small tmpfs, where this user may mount one); a real S3 server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore_node.tiering.obstore_store import StoreSettings
from tests.support.minio import BUCKET, PASSWORD, REGION, USER, Minio, minio_program, running_minio

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


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    if minio_program() is None:
        pytest.skip("no MinIO: make setup-minio builds it")
    with running_minio(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def s3(
    minio: Minio, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> StoreSettings:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", USER)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)
    prefix = f"{abs(hash(request.node.nodeid))}"
    return StoreSettings(
        url=f"s3://{BUCKET}/{prefix}",
        region=REGION,
        endpoint=minio.endpoint,
        retries_max=1,
        retry_ms_max=2000,
    )
