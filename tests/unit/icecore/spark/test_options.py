"""Options of the data source: what texts mean, and what is refused with which hint."""

import pytest

from icecore.errors import ConfigurationError
from icecore.spark.options import AsOf, as_of_text, read_options, write_options

WHERE = {"topic": "t", "bootstrap": "h:1"}


def test_defaults() -> None:
    batch = read_options(WHERE, is_stream=False)
    assert (batch.starting, batch.ending, batch.fail_on_data_loss) == ("earliest", "latest", True)
    assert (batch.keys, batch.tags, batch.columns, batch.min_partitions) == ((), (), (), 0)
    assert read_options(WHERE, is_stream=True).starting == "latest"
    writing = write_options(WHERE, is_stream=False)
    assert (writing.idempotent, writing.acks, writing.compression) == (True, "all", "lz4")


def test_lower_case_names_are_known() -> None:
    given = WHERE | {"startingoffsets": '{"0": 5, "1": "latest"}', "FAILONDATALOSS": "False"}
    found = read_options(given, is_stream=False)
    assert found.starting == {0: 5, 1: "latest"}
    assert not found.fail_on_data_loss


def test_where_tiered_records_are_read() -> None:
    assert read_options(WHERE, is_stream=False).tiered == "files-or-nodes"
    given = WHERE | {"TIERED": "files", "tier_url": "s3a://bucket/prefix/"}
    found = read_options(given, is_stream=False)
    assert (found.tiered, found.tier_url) == ("files", "s3a://bucket/prefix")
    with pytest.raises(ConfigurationError, match="there is no option tiered"):
        read_options(WHERE | {"tiered": "files"}, is_stream=True)


def test_lists() -> None:
    found = read_options(WHERE | {"keys": "a, b", "tags": '["x,y", " z"]'}, is_stream=False)
    assert found.keys == (b"a", b"b")
    assert found.tags == ("x,y", " z")


def test_times() -> None:
    given = WHERE | {"startingTimestamp": "2013-03-01T00:00:00+01:00", "endingTimestamp": "7"}
    found = read_options(given, is_stream=False)
    assert (found.starting_ms, found.ending_ms) == (1_362_092_400_000, 7)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("startingOffset", "earliest", "did you mean startingOffsets"),
        ("zzz", "1", "there are topic, bootstrap"),
        ("maxOffsetsPerTrigger", "5", "there is no option"),
        ("tiered", "remote", "tiered is one of files-or-nodes, files, nodes"),
        ("topic", "", "option topic is missing"),
        ("topic", "a b", "1 to 249 characters"),
        ("bootstrap", " ", "option bootstrap is missing"),
        ("startingOffsets", "oldest", "startingOffsets is earliest"),
        ("startingOffsets", "{}", "by partition as JSON"),
        ("startingOffsets", '{"0": -1}', "by partition as JSON"),
        ("startingOffsets", '{"0": true}', "by partition as JSON"),
        ("startingOffsets", '{"x": 1}', "by partition as JSON"),
        ("startingOffsets", '{"0": 1, "0": 2}', "by partition as JSON"),
        ("startingOffsets", '{"0": 1, "00": 2}', "by partition as JSON"),
        ("startingOffsets", "[" * 100_000, "by partition as JSON"),
        ("endingOffsets", "earliest", "nothing comes before"),
        ("startingTimestamp", "2013-03-01", "a time with time zone"),
        ("startingTimestamp", "-5", "a time with time zone"),
        ("startingTimestamp", "9" * 30, "a time with time zone"),
        ("minPartitions", "0", "whole number"),
        ("offsetRanges", "{}", "give its topicId"),
        ("topicId", "00", "32 hex digits"),
        ("minPartitions", "1e3", "whole number"),
        ("minPartitions", "9" * 5_000, "whole number"),
        ("failOnDataLoss", "yes", "true or false"),
        ("keys", "", "keys is a list"),
        ("keys", "a,,b", "keys is a list"),
        ("tags", '["a", 1]', "tags is a list"),
        ("tags", '["a", "a"]', "tags is a list"),
    ],
)
def test_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_options(WHERE | {name: text}, is_stream=False)


def test_contradictions() -> None:
    both = {"startingOffsets": "earliest", "startingTimestamp": "5"}
    with pytest.raises(ConfigurationError, match="not both"):
        read_options(WHERE | both, is_stream=False)
    with pytest.raises(ConfigurationError, match="there is no option endingOffsets"):
        read_options(WHERE | {"endingOffsets": "latest"}, is_stream=True)
    with pytest.raises(ConfigurationError, match="nothing follows"):
        read_options(WHERE | {"startingOffsets": "latest"}, is_stream=False)
    with pytest.raises(ConfigurationError, match="writeId"):
        write_options(WHERE | {"writeId": "x", "idempotent": "false"}, is_stream=False)


def test_a_write_may_say_which_topic_it_means() -> None:
    for is_stream in (False, True):
        assert write_options(WHERE, is_stream=is_stream).topic_id == b""
        given = WHERE | {"topicId": "0a" * 16}
        assert write_options(given, is_stream=is_stream).topic_id == b"\n" * 16
        with pytest.raises(ConfigurationError, match="32 hex digits"):
            write_options(WHERE | {"topicId": "x"}, is_stream=is_stream)


def test_ranges_of_offsets() -> None:
    given = WHERE | {"topicId": "0a" * 16, "offsetRanges": '{"0": [[0, 3], [3, 9]], "7": []}'}
    found = read_options(given, is_stream=False)
    assert found.offset_ranges == {0: [(0, 3), (3, 9)], 7: []}
    assert found.topic_id == b"\n" * 16
    for text in (
        "[]",
        '{"x": []}',
        '{"0": [[3, 3]]}',
        '{"0": [[3, 5], [4, 9]]}',
        '{"0": [[-1, 5]]}',
        '{"0": [[0, 5, 6]]}',
        '{"0": [[0, 5], 6]}',
        '{"0": [["0", 5]]}',
        '{"0": [], "00": []}',
        '{"0": [[0, 99999999999999999999]]}',
    ):
        with pytest.raises(ConfigurationError, match="ascending ranges"):
            read_options(given | {"offsetRanges": text}, is_stream=False)
    with pytest.raises(ConfigurationError, match="not both"):
        read_options(given | {"startingOffsets": "earliest"}, is_stream=False)


def test_moments() -> None:
    moment = AsOf(b"t" * 16, b"l" * 16, {0: 1, 3: 7}, {0: 1, 3: 9})
    assert read_options(WHERE | {"asOf": as_of_text(moment)}, is_stream=False).as_of == moment
    text = as_of_text(moment)
    for wrong in (
        "",
        "latest",
        "{}",
        text.replace("74" * 16, "74"),
        text.replace('"3": 7', '"3": 10'),
        text.replace('"3": 7', '"4": 7'),
        text.replace('"3": 7', '"3": -7'),
        text.replace('"3": 7', '"3": true'),
        text.replace('"3": 7', '"x": 7'),
        text.replace("leaseId", "lease"),
    ):
        with pytest.raises(ConfigurationError, match=r"what icecore.spark.hold\(…\).as_of says"):
            read_options(WHERE | {"asOf": wrong}, is_stream=False)
    with pytest.raises(ConfigurationError, match="not both"):
        read_options(WHERE | {"asOf": text, "topicId": "0a" * 16}, is_stream=False)
    with pytest.raises(ConfigurationError, match="there is no option asOf"):
        read_options(WHERE | {"asOf": text}, is_stream=True)
