"""The option that rewrites stories."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Only where this folder is named on the command line, which is where it is wanted."""
    parser.addoption(
        "--rewrite", action="store_true", help="write down what the stories print now, then diff"
    )


@pytest.fixture
def rewrite(pytestconfig: pytest.Config) -> bool:
    """Return whether stories are rewritten rather than compared."""
    return bool(pytestconfig.getoption("--rewrite", default=False))
