"""Templates of records: every field, bytes as they are, and what is refused."""

import pytest

from icecore.cli.records.templates import fill, parse_separator, parse_template
from icecore.codec.record import Record

RECORD = Record(
    b"\xff%v",
    b"k",
    1_000,
    ("a", "b"),
    (("h", b"1"), ("n", None)),
    offset=7,
    append_timestamp_ms=2_000,
    partition=3,
    topic="t",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t/%p@%o", b"t/3@7"),
        (r"%k\t%v\n", b"k\t\xff%v\n"),
        ("%T %A", b"1970-01-01T00:00:01.000Z 1970-01-01T00:00:02.000Z"),
        ("%g|%h", b"a,b|h=1,n="),
        (r"100%% \\ \0\rä", b"100% \\ \0\r\xc3\xa4"),
        (r"%k\x3d%v\xff", b"k=\xff%v\xff"),
    ],
)
def test_filled(text: str, expected: bytes) -> None:
    assert fill(parse_template(text), RECORD) == expected


def test_nothing_is_nothing() -> None:
    assert fill(parse_template("<%k%v%g%h>"), Record(None)) == b"<>"


@pytest.mark.parametrize("text", ["%", "%x", "\\", "\\x", "%v%"])
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there are"):
        parse_template(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", b""),
        ("::", b"::"),
        (r"\t", b"\t"),
        (r"a\x00\xe9%k", b"a\0\xe9%k"),
        ("\udce9ä", b"\xe9\xc3\xa4"),
    ],
)
def test_separator(text: str, expected: bytes) -> None:
    assert parse_separator(text).encode(errors="surrogateescape") == expected
