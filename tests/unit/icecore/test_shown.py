"""A repr is one line that a person can read, however much the value holds."""

from icecore import Record
from icecore.client.types import LookupPage, PartitionDescription, TopicDescription
from icecore.model import Segment, SegmentState
from icecore.topic_settings import TopicSettings

LINE_MAX = 250


def segment() -> Segment:
    return Segment(
        topic_id=b"t" * 16,
        topic="t",
        partition=0,
        segment_id=1,
        epoch=1,
        generation=0,
        base_offset=0,
        end_offset=-1,
        state=SegmentState.ACTIVE,
        leader=1,
    )


def test_a_record_says_what_it_has() -> None:
    assert repr(Record(b"v", b"k", 5, offset=7)) == (
        "Record(value=b'v', key=b'k', timestamp_ms=5, offset=7)"
    )
    assert repr(Record(None, timestamp_ms=0)) == "Record(value=None, timestamp_ms=0)"
    large = Record(b"x" * (1 << 20), tags=tuple(map(str, range(1000))), topic="t")
    assert "1048576 bytes" in repr(large) and "tags=<1000 items>" in repr(large)
    assert len(repr(large)) < LINE_MAX


def test_a_topic_of_many_partitions_is_a_line() -> None:
    parts = tuple(PartitionDescription(n, 0, 0, segment(), 1, 0) for n in range(1000))
    topic = TopicDescription("t", b"\x0c" * 16, TopicSettings(), parts)
    assert repr(topic) == (
        f"TopicDescription(name='t', topic_id='{'0c' * 16}', "
        "partitions=<1000 PartitionDescription>)"
    )


def test_a_page_counts_its_records() -> None:
    page = LookupPage((Record(b"v"),) * 100, True, dict.fromkeys(range(100), 1), (), b"", 3)
    assert repr(page) == (
        "LookupPage(records=<100 Record>, complete=True, indexed_through=<100 entries>, "
        "segments=(), continuation=b'', planned_age_ms=3)"
    )
