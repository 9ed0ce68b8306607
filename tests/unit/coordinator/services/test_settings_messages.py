"""The cluster's defaults fill in the topic settings that a creation leaves out."""

from pathlib import Path
from typing import Any

import pytest

from icecore.errors import ConfigurationError, InvalidRequestError
from icecore.process.settings import load
from icecore.v1 import admin_pb2 as pb
from icecore.v1.common_pb2 import FLUSH_MODE_ASYNC
from icecore_coordinator.config import CoordinatorSettings, TopicDefaults
from icecore_coordinator.services.settings_messages import settings_of, with_defaults

FILE = """
[coordinator]
data = "d"
[coordinator.topic_defaults]
segment_bytes = "64MiB"
retention_ms = 5
retention_bytes = "1GiB"
flush_mode = "async"
engine = "memory"
on_total_loss = "unavailable"
"""


def defaults(tmp_path: Path) -> TopicDefaults:
    path = tmp_path / "icecore.toml"
    path.write_text(FILE)
    return load(CoordinatorSettings, path, environ={}).topic_defaults


def test_what_is_not_said_comes_from_the_cluster(tmp_path: Path) -> None:
    found = with_defaults(pb.TopicSettings(retention_ms=-1, segment_bytes=9), defaults(tmp_path))
    assert (found.retention_ms, found.retention_bytes, found.segment_bytes) == (-1, 1 << 30, 9)
    assert found.flush_mode == FLUSH_MODE_ASYNC
    assert (found.engine, found.on_total_loss) == ("memory", "unavailable")
    assert not found.HasField("delete_grace_ms")


def test_who_says_an_engine_gets_nothing_of_another_one(tmp_path: Path) -> None:
    found = with_defaults(pb.TopicSettings(engine="segment"), defaults(tmp_path))
    assert (found.engine, found.on_total_loss) == ("segment", "")


def test_without_any_a_message_stays_as_it_is() -> None:
    message = pb.TopicSettings(partitions=3, retention_bytes=0)
    assert with_defaults(message, TopicDefaults()) == message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"retention_msx": 1}', "topic_defaults.retention_msx"),
        ("no json", "not a JSON object"),
        ('{"engine": "x"}', "topic_defaults.engine"),
        ('{"retention_ms": -2}', "topic_defaults.retention_ms"),
        ('{"retention_bytes": "many"}', "topic_defaults.retention_bytes"),
        ("[1]", "not a table"),
    ],
)
def test_bad_defaults_are_named(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        load(CoordinatorSettings, None, {"data": "d", "topic_defaults": text}, environ={})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"min_insync_replicas": 0}, "min_insync_replicas is 1 to 32, not 0"),
        ({"replication_factor": 0}, "replication_factor is 1 to 32, not 0"),
        ({"partitions": 0}, "partitions is 1 to 10000, not 0"),
        ({"on_total_loss": ""}, "on_total_loss '' must be one of unavailable, restart_empty"),
        ({"flush_mode": 0}, "FlushMode has no number 0"),
        ({"tier": ""}, "tier '' must be one of off, on"),
        ({"retention_ms": 0}, "retention_ms is -1 .no limit. or 1 to"),
    ],
)
def test_zero_and_the_empty_text_are_values_like_others(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        settings_of(pb.TopicSettings(**given))
