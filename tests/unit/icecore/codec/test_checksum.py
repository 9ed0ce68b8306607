"""CRC32C by both libraries, of every kind of buffer, against a slow one that anybody can read."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec.checksum import (
    Bytes,
    crc32c,
    crc32c_between,
    crc32c_by_instruction,
    crc32c_of_parts,
)
from tests.support import rotation
from tests.support.format_codec import crc32c as by_hand

BOTH = pytest.mark.parametrize("function", [crc32c, crc32c_by_instruction])


@BOTH
def test_the_check_value_of_the_algorithm(function: Callable[..., int]) -> None:
    assert function(b"123456789") == 0xE3069283
    assert function(b"") == 0


@BOTH
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("length", [1, 7, 64, 255, 4096, (1 << 14) - 1, 1 << 14, (1 << 17) + 3])
def test_any_buffer_of_any_length(
    function: Callable[..., int], kind: type[Bytes], length: int
) -> None:
    data = bytes(number * 31 & 255 for number in range(length))
    assert function(kind(data)) == by_hand(data)
    middle = length // 3
    assert function(kind(data[middle:]), function(kind(data[:middle]))) == by_hand(data)


def test_they_are_two_libraries() -> None:
    assert crc32c is not crc32c_by_instruction


def test_a_plain_client_has_the_one_that_it_installed() -> None:
    program = (
        "import sys; sys.modules['awscrt'] = None\n"
        "from icecore.codec import checksum\n"
        "assert checksum.crc32c is checksum.crc32c_by_instruction\n"
        "print(checksum.crc32c_between(b'0123456789', 1, 10))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(found.stdout) == 0xE3069283


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 300))
@settings(max_examples=rotation.examples(100))
def test_any_range(data: bytes, start: int, end: int) -> None:
    big = data * 500
    start, end = sorted((start * 400, end * 400))
    end = min(end, len(big))
    for buffer in (big, bytearray(big), memoryview(big)):
        assert crc32c_between(buffer, start, end) == crc32c_by_instruction(big[start:end])


@given(st.lists(st.binary(max_size=300), max_size=5))
@settings(max_examples=rotation.examples(100))
def test_parts_are_as_their_concatenation(parts: list[bytes]) -> None:
    whole = by_hand(b"".join(parts))
    assert crc32c_of_parts(parts) == whole
    assert crc32c_of_parts([memoryview(part) for part in parts]) == whole
