"""Columns on their way into batches: split by partition, however much is taken at once."""

import random
from typing import Any

import pyarrow as pa
import pytest

from icecore.client.produce import bulk
from icecore.client.produce.bulk import Columns, columns_of
from icecore.codec.columns import hash_keys

COUNT, KEYLESS = 7, 3


def columns(rng: random.Random, count: int, is_arrow: bool) -> tuple[list[bytes], Columns]:
    """Values that are all different; their keys are not."""
    values = [b"%d " % number + bytes(rng.choice((0, 1, 300))) for number in range(count)]
    keys = [rng.choice([None, b"", b"a", b"%d" % rng.randrange(40)]) for _ in values]
    keys[rng.randrange(count)] = b"there is one"
    tags = [("even",) if number % 2 == 0 else () for number in range(count)]
    if not is_arrow:
        return values, columns_of(values, keys, tags, None, list(range(count)), 0)
    given = {"value": values, "key": keys, "tags": tags, "timestamp_ms": list(range(count))}
    types = {"value": pa.binary(), "key": pa.binary(), "tags": pa.list_(pa.string())}
    rows = {name: pa.array(column, types.get(name)) for name, column in given.items()}
    return values, columns_of(pa.record_batch(rows), None, None, None, None, 0)


def rows_of(part: Columns) -> list[tuple[Any, ...]]:
    """Value, key, tags, time."""
    if part._rows is not None:
        return list(zip(*(part._rows.column(n).to_pylist() for n in _NAMES), strict=True))
    lists = part._lists
    times = [] if part._times is None else part._times.tolist()
    return list(zip(lists["values"], lists["keys"], map(list, lists["tags"]), times, strict=True))


_NAMES = ("value", "key", "tags", "timestamp_ms")


@pytest.mark.parametrize("is_arrow", [False, True])
@pytest.mark.parametrize("taken_bytes", [1, 500, 1 << 20])
@pytest.mark.parametrize("seed", range(8))
def test_each_record_goes_to_the_partition_of_its_key_in_order(
    monkeypatch: pytest.MonkeyPatch, is_arrow: bool, taken_bytes: int, seed: int
) -> None:
    monkeypatch.setattr(bulk, "_TAKEN_BYTES", taken_bytes)
    rng = random.Random(seed)
    values, given = columns(rng, rng.choice((1, 2, 9, 200)), is_arrow)
    expected: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows_of(given):
        number = KEYLESS
        if row[1] is not None:
            number = (int(hash_keys([row[1]])[0]) >> 32) % COUNT
        expected.setdefault(number, []).append(row)
    found = dict(given.by_partition(COUNT, KEYLESS))
    assert list(found) == sorted(expected)
    assert {number: rows_of(part) for number, part in found.items()} == expected
    assert [row[0] for row in rows_of(given)] == values, "what was given stays as it is"
    for number, part in found.items():
        assert len(part) == len(expected[number])
        assert part.hashes is not None
        assert part.hashes.tolist() == [
            0 if key is None else int(hash_keys([key])[0]) for _, key, _, _ in expected[number]
        ]
    assert sum(part.size_bytes for part in found.values()) == given.size_bytes
