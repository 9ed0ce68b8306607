"""A client calls nodes as the program says, else as the environment does."""

import pytest

from icecore.client.cluster.connection import Connection
from icecore.errors import ConfigurationError


@pytest.mark.parametrize(
    ("own", "general", "found"),
    [("", "", "auto"), ("grpc", "", "grpc"), ("", "grpc", "grpc"), ("auto", "grpc", "auto")],
)
def test_the_environment_says_it(
    monkeypatch: pytest.MonkeyPatch, own: str, general: str, found: str
) -> None:
    monkeypatch.setenv("ICECORE_CLIENT__TRANSPORT", own)
    monkeypatch.setenv("ICECORE_TRANSPORT", general)
    assert Connection("127.0.0.1:1").transport == found
    assert Connection("native://127.0.0.1:1", transport="grpc").transport == "grpc"
    assert Connection("127.0.0.1:1", transport="auto").transport == "auto"


def test_what_is_no_transport_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="transport is auto or grpc, not 'udp'"):
        Connection("127.0.0.1:1", transport="udp")  # type: ignore[arg-type]
    monkeypatch.setenv("ICECORE_CLIENT__TRANSPORT", "native")
    with pytest.raises(ConfigurationError, match="ICECORE_CLIENT__TRANSPORT is auto or grpc"):
        Connection("127.0.0.1:1")
