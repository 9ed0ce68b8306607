"""One release for all tests of a run that need a Kubernetes."""

from collections.abc import Iterator

import pytest

from tests.deploy.kubernetes import installed


@pytest.fixture(scope="session")
def release() -> Iterator[str]:
    """The name of an installed release."""
    with installed() as name:
        yield name
