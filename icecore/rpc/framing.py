"""Framing of bulk messages by hand, so that batches pass from socket to file without a copy.

``ProduceRequest``, ``FetchResponse``, ``ReplicaData`` and ``ReadSegmentResponse`` have one small
``header`` (field 1) and one contiguous ``bytes batches`` (field 15). Writing them is one join;
reading them finds two lengths. A peer whose protobuf library orders, splits or repeats the fields
otherwise is understood too: then the generated parser does it, with its copies.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from icecore.errors import InvalidRequestError
from icecore.rpc.ports import Buffer, Bulk, Received

_M = TypeVar("_M", bound=Message)

_HEADER_TAG = 0x0A
_BATCHES_TAG = 0x7A
_PARTS_MAX = 64
_LENGTH_DELIMITED = 2
_MAX_VARINT_BYTES = 5  # lengths of up to 2^35; anything longer is left to the generated parser


def parse(message_type: type[_M], body: Buffer) -> _M:
    """The message in ``body``.

    Raises:
        InvalidRequestError: ``body`` is not such a message.
    """
    try:
        return message_type.FromString(bytes(body))
    except DecodeError as error:
        raise InvalidRequestError(f"malformed {message_type.DESCRIPTOR.name}: {error}") from error


def frame_bulk(header: bytes, buffers: Sequence[Buffer]) -> list[Buffer]:
    """A bulk message from its serialized header and the buffers that make up ``batches``; these are
    not copied, so nothing in them may change until the message is gone."""
    length = sum(map(len, buffers))
    head = b"\x0a" + _varint(len(header)) + header + b"\x7a" + _varint(length)
    return [head, *buffers]


def bulk_request(header: bytes, buffers: Sequence[Buffer]) -> Bulk:
    """The same as a request whose header a server may see before it takes the batches."""
    lead = frame_bulk(header, buffers)[0]
    return Bulk(header, bytes(lead), buffers)


def split_bulk(body: Received, message_type: type[Message]) -> tuple[bytes, memoryview]:
    """The serialized header and the batches of a bulk message; the latter is a view, not a copy.

    The header itself is not looked into: ``parse`` it.

    Args:
        body: The whole message.
        message_type: Its generated class, for messages framed in another way.

    Raises:
        InvalidRequestError: ``body`` is not such a message.
    """
    found = _split_documented_order(body)
    if found is not None:
        return found
    _check_parts(body)
    message: Any = parse(message_type, body)
    return message.header.SerializeToString(), memoryview(message.batches)


def _split_documented_order(body: Received) -> tuple[bytes, memoryview] | None:
    """Exactly one header, then exactly one or no ``batches``; None for anything else."""
    end = len(body)
    if not end or body[0] != _HEADER_TAG:
        return None
    length, start = _read_varint(body, 1)
    header_end = start + length
    if start == 0 or header_end > end:
        return None
    header = bytes(body[start:header_end])
    if header_end == end:
        return header, memoryview(b"")
    if body[header_end] != _BATCHES_TAG:
        return None
    length, start = _read_varint(body, header_end + 1)
    if start == 0 or start + length != end:
        return None
    return header, memoryview(body)[start:]


def _check_parts(body: Received) -> None:
    """A header in a few parts is a header; one in a million parts is an attack."""
    at, end = 0, len(body)
    for _ in range(_PARTS_MAX):
        if at >= end:
            return
        kind = body[at] & 7
        value, at = _read_varint(body, at + 1)
        if kind != _LENGTH_DELIMITED or not at:
            return  # no such message: the parser says so, or finds fields that it does not know
        at += value
    raise InvalidRequestError(f"a bulk message in more than {_PARTS_MAX} parts")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(body: Received, position: int) -> tuple[int, int]:
    """The value and the position after it; that position is 0 when there is no (short) varint."""
    value = 0
    for shift, byte in enumerate(body[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    return 0, 0


# --- lists in several messages --------------------------------------------------------------------

# Producer states of segments make lists large: with many short-lived producers, those of a group of
# segments outgrow the limit of one message, and no repetition makes them smaller.


T = TypeVar("T")

PART_BYTES_MAX: Final = 32 << 20
"""Half of what one message may have, which leaves room for the small fields of each item."""


def in_parts(
    items: Sequence[T], bytes_of: Callable[[T], int], count_max: int | None = None
) -> list[Sequence[T]]:
    """The items in order, in parts that fit one message each; a part holds at least one item.

    Args:
        items: What is to be sent.
        bytes_of: How much of a message an item takes.
        count_max: How many items a part may hold; any number when None.
    """
    found: list[Sequence[T]] = []
    begin, used = 0, 0
    for at, item in enumerate(items):
        size = bytes_of(item)
        if at > begin and (used + size > PART_BYTES_MAX or at - begin == count_max):
            found.append(items[begin:at])
            begin, used = at, 0
        used += size
    if begin < len(items):
        found.append(items[begin:])
    return found
