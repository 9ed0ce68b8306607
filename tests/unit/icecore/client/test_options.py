"""Options that both classes of a client take: names, defaults, docstrings, and wrong names."""

import inspect
from typing import Any

import pytest

import icecore
from icecore import blocking, client
from icecore.client.options import filled
from icecore.errors import ConfigurationError

NOWHERE = "127.0.0.1:1"
CLASSES = [client.Producer, client.Consumer, blocking.Producer, blocking.Consumer]
KINDS = [(client.Producer, icecore.ProducerOptions), (client.Consumer, icecore.ConsumerOptions)]


@pytest.mark.parametrize("cls", CLASSES)
def test_help_shows_every_option_once(cls: type) -> None:
    doc = inspect.getdoc(cls) or ""
    for name in inspect.signature(cls).parameters:
        if name not in ("net", "clock", "rng"):
            assert doc.count(f"\n    {name}: ") == 1, name
    assert "options:" not in doc


@pytest.mark.parametrize(("cls", "kind"), KINDS)
def test_defaults_are_those_of_the_signature(cls: type, kind: Any) -> None:
    shown = inspect.signature(cls).parameters
    defaults = filled(cls, kind, {})
    assert {name: shown[name].default for name in defaults} == defaults
    first = next(iter(defaults))
    assert filled(cls, kind, {first: None}) == defaults | {first: None}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("transprt", "'transprt': did you mean 'transport'?"),
        ("on_retries", "'on_retries': did you mean 'on_retry'?"),
        ("zzz", "'zzz': it takes bootstrap, "),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest(cls: Any, name: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        cls(NOWHERE, **{name: 1})
    assert str(caught.value).startswith(f"{cls.__name__}() got an unexpected keyword argument")
    assert hint in str(caught.value)


@pytest.mark.parametrize("cls", [blocking.Producer, blocking.Consumer])
@pytest.mark.parametrize("name", ["net", "clock", "rng"])
def test_threads_give_no_ports(cls: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"'{name}'"):
        cls(NOWHERE, **{name: None})


@pytest.mark.parametrize("cls", [blocking.Producer, client.Producer])
def test_wrong_values_keep_their_errors(cls: Any) -> None:
    for given, error in (
        ({"linger_ms": None}, TypeError),
        ({"linger_ms": -1}, ConfigurationError),
        ({"acks": "none"}, ConfigurationError),
        ({"batch_bytes": 0}, ConfigurationError),
    ):
        with pytest.raises(error):
            cls(NOWHERE, **given)
    with pytest.raises(TypeError, match="positional"):
        cls(NOWHERE, "all")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("group", "no consumer groups yet: .*partitions="),
        ("group_id", "no consumer groups yet"),
        ("bootstrap_servers", "the first argument"),
        ("auto_offset_reset", "start="),
    ],
)
def test_names_of_other_products_are_answered(name: str, said: str) -> None:
    with pytest.raises(TypeError, match=rf"Consumer\(\) has no {name}: .*{said}"):
        icecore.Consumer("127.0.0.1:1", "t", **{name: 1})
