"""A node's native address: where it listens, and the address it tells others."""

import pytest

from icecore.errors import ConfigurationError
from icecore_node.config import NodeSettings


def settings(**values: object) -> NodeSettings:
    return NodeSettings.model_validate({"data": "unused", "node_id": 1, **values})


@pytest.mark.parametrize(
    ("values", "bind"),
    [
        ({}, "127.0.0.1:0"),
        ({"listen": "10.0.0.1:7401"}, "10.0.0.1:0"),
        ({"listen": "[::1]:7401"}, "[::1]:0"),
        ({"native_listen": "127.0.0.2:7501"}, "127.0.0.2:7501"),
        ({"native_listen": ""}, ""),
        ({"native_listen": "127.0.0.2:7501", "transport": "grpc"}, ""),
    ],
)
def test_where_it_listens_natively(values: dict[str, object], bind: str) -> None:
    assert settings(**values).native_bind == bind


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "127.0.0.1:7501"),
        ({"advertise": "n1.example:7401"}, "n1.example:7501"),
        ({"advertise": "n1.example:7401", "native_advertise": "front:9"}, "front:9"),
        ({"native_advertise": "front:9"}, "front:9"),
    ],
)
def test_what_it_tells_others(values: dict[str, object], told: str) -> None:
    assert settings(**values).native_reached("127.0.0.1:7501") == told


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"native_listen": "10.0.0.1:7501"}, "insecure-bind"),
        ({"native_listen": "7501"}, "HOST:PORT"),
        ({"native_advertise": "n1"}, "HOST:PORT"),
        ({"advertise": "n1"}, "HOST:PORT"),
        ({"advertise": "0.0.0.0:7401"}, "advertise 0.0.0.0:7401: others can't connect"),
        ({"native_advertise": "[::]:7501"}, "native_advertise .* others can't connect"),
        ({"coordinator": "0.0.0.0:7400"}, "coordinator 0.0.0.0:7400: others can't connect"),
        ({"listen": "[::]:7401", "insecure_bind": True}, "with --advertise HOST:PORT"),
        (
            {"native_listen": "0.0.0.0:7501", "insecure_bind": True},
            "0.0.0.0:7501: .* with --native-advertise HOST:PORT",
        ),
    ],
)
def test_addresses_are_checked(values: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        settings(**values).check_addresses()
    with pytest.raises(ConfigurationError, match="write HOST:PORT"):
        settings(coordinator="127.0.0.1:7400, x").check_addresses()
    settings(native_listen="10.0.0.1:7501", insecure_bind=True).check_addresses()


@pytest.mark.parametrize(
    "values",
    [
        {"advertise": "n1.example:7401"},
        {"advertise": "[::1]:7401", "transport": "grpc"},
        {"advertise": "n1.example:7401", "native_listen": "[::]:7501"},
    ],
)
def test_a_wildcard_is_listened_on_where_others_are_told_another_host(
    values: dict[str, object],
) -> None:
    settings(listen="0.0.0.0:7401", insecure_bind=True, **values).check_addresses()
