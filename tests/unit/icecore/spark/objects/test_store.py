"""Opens the stores that nodes name, and says why not where it can't."""

from pathlib import Path

import pytest

from icecore.errors import ConfigurationError
from icecore.spark.objects import store
from icecore.spark.objects.store import SparkStore, spark_url


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_refused", {})


def test_a_folder_is_opened_by_the_name_that_nodes_give(tmp_path: Path) -> None:
    folder = tmp_path / "a bucket [1]{a,b}"
    folder.mkdir()
    (folder / "object").write_bytes(b"bytes")
    opened = SparkStore(spark_url(folder.as_uri()))
    opened.probe("object")
    with opened.open("object") as file:
        assert file.read() == b"bytes"
    assert SparkStore(str(folder)).open("object").size() == 5


def test_who_is_refused_hears_it_at_once_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(store.time, "monotonic", lambda: now_s)
    url = (tmp_path / "missing").as_uri()
    with pytest.raises(ConfigurationError, match="on every machine of Spark's") as raised:
        SparkStore(url).probe("object")
    assert "tiered=nodes" in raised.value.message
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "object").touch()
    with pytest.raises(ConfigurationError, match="on every machine of Spark's"):
        SparkStore(url)
    now_s += 61
    SparkStore(url).probe("object")


def test_a_store_without_a_name_of_its_own_asks_for_one() -> None:
    for named in ("", "az://container/prefix", "webhdfs://name:9870/folder"):
        with pytest.raises(ConfigurationError, match="tier_url"):
            spark_url(named)
    assert spark_url("s3://bucket/prefix/") == "s3a://bucket/prefix"
