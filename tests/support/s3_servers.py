"""The S3 servers of tests as fixtures: moto's in every run, MinIO wherever it was built.

Each process of tests has at most one of each, since tests use prefixes of their own.
"""

from collections.abc import Iterator

import pytest

from tests.support import left_out
from tests.support.minio import minio_program, running_minio
from tests.support.s3 import S3Server, running_moto

NEEDS_MINIO = pytest.mark.skipif(
    minio_program() is None, reason=left_out.reason("MinIO", "make setup-minio")
)
SERVERS = ("moto", pytest.param("minio", marks=NEEDS_MINIO))
"""For ``parametrize``: what a test is shown on."""


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """moto's server."""
    with running_moto() as server:
        yield server


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A MinIO."""
    with running_minio(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Return the server of this parameter: ``@pytest.mark.parametrize("s3_server", SERVERS,
    indirect=True)``."""
    found: S3Server = request.getfixturevalue(request.param)
    return found
