"""Fields of JSON lines: their values stay what they are, or the line is refused."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.cli.records.json_text import JsonPart, items_of, members_of
from icecore.cli.records.record_lines import RECORDS, LineFormat, parse_lines
from icecore.codec.record import Record
from icecore.errors import InvalidRequestError
from tests.support import rotation

FIELDS = LineFormat(
    is_ndjson=True, key_field="k", value_field="v", tag_fields=("t",), headers_field="h"
)

BOM = b"\xef\xbb\xbf"


def parsed(line: bytes, form: LineFormat) -> Record:
    ((_, record),) = parse_lines([line], "x", form)
    return record


# --- any JSON, as it was written ------------------------------------------------------------------

space = st.sampled_from(["", "", " ", "\t", "\r", "  "])
numbers = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(
        [
            "1.10",
            "1E400",
            "-0",
            "0.1000",
            "9007199254740993",
            "1e-400",
            "12345678901234567890.12345",
            "9" * 5_000,
        ]
    ),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,4})?", fullmatch=True),
)
strings = st.builds(
    lambda text, is_ascii: json.dumps(text, ensure_ascii=is_ascii),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.booleans(),
)
plain = st.one_of(numbers, strings, st.sampled_from(["null", "true", "false"]))


def _lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.tuples(strings, space, inner).map(lambda each: f"{each[0]}{each[1]}:{each[2]}")
    several = [st.lists(each, max_size=3).map(",".join) for each in (inner, members)]
    return st.one_of(
        st.tuples(space, several[0]).map(lambda each: f"[{each[0]}{each[1]}{each[0]}]"),
        st.tuples(space, several[1]).map(lambda each: f"{{{each[0]}{each[1]}}}"),
    )


texts = st.recursive(plain, _lists, max_leaves=6)


def as_bytes(text: str) -> bytes | None:
    """By the rule: null is none, a string is its text, all else is the source."""
    if text == "null":
        return None
    if text.startswith('"'):
        return str(json.loads(text)).encode()
    return text.encode()


@settings(max_examples=rotation.examples(200), deadline=None)
@given(
    key=texts, value=texts, tags=st.lists(plain, max_size=3), header=texts, gap=space, other=texts
)
def test_what_is_no_string_is_the_bytes_of_the_source(
    key: str, value: str, tags: list[str], header: str, gap: str, other: str
) -> None:
    line = (
        f'{gap}{{"k":{gap}{key}{gap},"v":{value},"other":{other},'
        f'"t":[{",".join(tags)}{gap}],"h":{{"a":{header},{gap}"a"{gap}:1.10}}}}{gap}'
    ).encode()
    record = parsed(line, FIELDS)
    assert (record.key, record.value) == (as_bytes(key), as_bytes(value))
    assert record.headers == (("a", as_bytes(header)), ("a", b"1.10"))
    found = [as_bytes(tag) for tag in tags]
    assert record.tags == tuple(each.decode() for each in found if each)
    assert parsed(BOM + line, FIELDS).value == record.value


def stored(part: JsonPart) -> bytes | None:
    text = part.as_text()
    return None if text is None else text.encode()


@settings(max_examples=rotation.examples(100), deadline=None)
@given(parts=st.lists(texts, max_size=4), gap=space)
def test_parts_are_found_where_they_stand(parts: list[str], gap: str) -> None:
    text = f"{gap}[{gap}{f'{gap},'.join(parts)}{gap}]"
    expected = [as_bytes(part) for part in parts]
    assert [stored(part) for part in items_of(text)] == expected
    members = ",".join(f'{gap}"n"{gap}:{gap}{part}{gap}' for part in parts)
    found = members_of(f"{{{members}{gap}}}")
    assert [(name, stored(part)) for name, part in found] == [("n", each) for each in expected]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"k": NaN, "v": 1}', "NaN is no JSON"),
        (b'{"k": 1, "v": [-Infinity]}', "-Infinity is no JSON"),
        (b'{"k": 1, "v": 1, "k": 2}', "field 'k' is in it more than once"),
        (b'{"k": 1}', "no field 'v' in it; there are k"),
        (b'{"k": 01, "v": 1}', "not valid JSON"),
        (b'{"k": 1, "v": 1} x', "not valid JSON"),
        (b'{"k": "\xff", "v": 1}', "not valid JSON"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_what_is_refused(line: bytes, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        parsed(line, LineFormat(is_ndjson=True, key_field="k", value_field="v"))


def test_a_message_names_not_all_of_many_fields() -> None:
    line = json.dumps({f"field{n}": n for n in range(5_000)}).encode()
    with pytest.raises(
        InvalidRequestError, match=r"no field 'k' in it; there are field0, .*\.\.\."
    ) as it:
        parsed(line, LineFormat(is_ndjson=True, key_field="k"))
    assert len(it.value.message) < 400


def test_a_whole_line_that_is_no_json_is_refused_as_well() -> None:
    for line in (b'{"a": NaN}', b"[]", b"{", b'{"a": "\xff"}'):
        with pytest.raises(InvalidRequestError):
            parsed(line, LineFormat(is_ndjson=True))
    line = b'{"a": 1E400, "a": %s}' % (b"9" * 5_000)
    assert parsed(line, LineFormat(is_ndjson=True)).value == line


# --- nothing, marks and ends ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("carrier", "tags"),
    [
        ("null", ()),
        ("true", ("true",)),
        ("1.0", ("1.0",)),
        ('{"a": [1]}', ('{"a": [1]}',)),
        ('["x", null, 2.50]', ("x", "2.50")),
        ("[]", ()),
        ('""', ()),
    ],
)
def test_tags_of_a_field(carrier: str, tags: tuple[str, ...]) -> None:
    form = LineFormat(is_ndjson=True, tag_fields=("carrier",))
    assert parsed(b'{"carrier": %s}' % carrier.encode(), form).tags == tags


def test_a_text_beside_a_field_is_data_unless_fetch_wrote_it() -> None:
    line = b'{"key": null, "value": "aGk=", "value_encoding": "base64", "tags": ["", "a"]'
    line += b', "headers": null, "timestamp": 0}'
    record = parsed(line, RECORDS)
    assert (record.value, record.tags, record.headers) == (b"hi", ("", "a"), ())
    assert parsed(line, LineFormat(is_ndjson=True, value_field="value")).value == b"aGk="


def test_only_its_end_is_no_part_of_a_line() -> None:
    lines = [b"a\r\n", b"b\rc\n", b"d\r\r\n", b"\r\n", b" e ", b"\xff"]
    assert [each.value for _, each in parse_lines(lines, "x", LineFormat())] == [
        b"a",
        b"b\rc",
        b"d\r",
        b" e ",
        b"\xff",
    ]
    record = parsed(b"k\xe9v", LineFormat(key_separator="\udce9"))
    assert (record.key, record.value) == (b"k", b"v")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1700000000000.9", 1_700_000_000_000),
        ("-0.1", -1),
        ('"-1e-999999"', -1),
        ('"1969-12-31T23:59:59.9999Z"', -1),
        ("1700000000000.99999999999999999999999999999999", 1_700_000_000_000),
        ('"2020-01-01T00:00:00.0009Z"', 1_577_836_800_000),
        ('"2020-01-01t00:00:00.0009z"', 1_577_836_800_000),
    ],
)
def test_a_finer_time_is_the_millisecond_in_which_it_lies(value: str, expected: int) -> None:
    form = LineFormat(is_ndjson=True, time_field="t")
    assert parsed(b'{"t": %s}' % value.encode(), form).timestamp_ms == expected


@pytest.mark.parametrize(
    "value",
    [
        '"1e999999"',
        "1e999999",
        '"sNaN"',
        '"-Infinity"',
        "null",
        "true",
        "[1]",
        "{}",
        '""',
        "1700000000000000",
        '"1_700_000"',
        '"\u0661\u0662"',
        '"NaN"',
    ],
)
def test_what_is_no_time_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="line 1: "):
        parsed(b'{"t": %s}' % value.encode(), LineFormat(is_ndjson=True, time_field="t"))


def test_lines_may_be_longer_than_a_record_where_fields_are_taken() -> None:
    value: Any = "\x01" * 1_000
    line = json.dumps({"v": value}).encode()
    assert len(line) <= LineFormat(is_ndjson=True, value_field="v").line_bytes_max(1_000)
    assert LineFormat(key_separator="=").line_bytes_max(1_000) == 1_003
