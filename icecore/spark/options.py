"""Options of the Spark data source: which there are, and what their texts mean.

Spark hands over texts under lower-case names. Nothing else in this package looks at them: what is
unknown, malformed or contradicts another one ends here, with an error that names the option.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, cast

from icecore.errors import ConfigurationError, InvalidRequestError, InvalidTopicNameError
from icecore.model import check_topic_name

Place: TypeAlias = int | Literal["earliest", "latest"]
"""Offset or end of one partition."""
Places: TypeAlias = Literal["earliest", "latest"] | Mapping[int, Place]
"""One place for all partitions, or a place for each."""
Tiered: TypeAlias = Literal["files", "files-or-nodes", "nodes"]
"""How records in object storage are read."""
Spans: TypeAlias = Mapping[int, Sequence[tuple[int, int]]]
"""Offset ranges by partition, ends exclusive; ascending, without overlap or contact."""

_COMMON: Final = ("topic", "bootstrap")
_READING: Final = (
    "startingOffsets",
    "startingTimestamp",
    "failOnDataLoss",
    "keys",
    "tags",
    "columns",
    "minPartitions",
)
BATCH: Final = (
    *_COMMON,
    *_READING,
    "endingOffsets",
    "endingTimestamp",
    "filterPushdown",
    "offsetRanges",
    "topicId",
    "asOf",
    "tiered",
    "tier_url",
)
STREAM: Final = (
    *_COMMON,
    *_READING,
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxFilesPerTrigger",
)
WRITE: Final = (*_COMMON, "idempotent", "writeId", "acks", "compression", "topicId")
STREAM_WRITE: Final = (*WRITE, "checkpointLocation", "path")
"""Spark passes on where it keeps its own state."""

TIERED: Final = ("files-or-nodes", "files", "nodes")
"""Values of the option; the first one counts unless it is given."""
ENDS: Final = frozenset(
    ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp")
)
_NUMBER_MAX: Final = (1 << 63) - 1
_PARTITIONS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment that somebody holds: nothing of it goes by itself while the hold lasts."""

    topic_id: bytes
    lease_id: bytes
    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a batch or a streaming read."""

    topic: str
    bootstrap: str
    starting: Places
    ending: Places
    starting_ms: int | None
    """Append time; instead of ``starting``."""
    ending_ms: int | None
    min_partitions: int
    max_offsets_per_trigger: int
    """0 = no limit."""
    max_bytes_per_trigger: int
    max_files_per_trigger: int
    """Segments."""
    fail_on_data_loss: bool
    keys: tuple[bytes, ...]
    tags: tuple[str, ...]
    columns: tuple[str, ...]
    """Empty = all."""
    filter_pushdown: bool
    offset_ranges: Spans | None
    """Instead of all that is above."""
    topic_id: bytes
    """Id of the topic that is meant; empty = any topic of the name."""
    as_of: AsOf | None
    """Instead of what there is now."""
    tiered: Tiered
    tier_url: str
    """Name of the cluster's prefix for a process that opens objects; empty = as nodes call it."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a batch or a streaming write."""

    topic: str
    bootstrap: str
    idempotent: bool
    write_id: str
    """Empty = one of its own."""
    acks: str
    compression: str
    topic_id: bytes
    """Id of the topic that is meant; empty = any topic of the name."""


def read_options(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Raises ConfigurationError."""
    texts = _known(given, STREAM if is_stream else BATCH)
    topic, bootstrap = _where(texts)
    for end in ("starting", "ending"):
        if f"{end}Offsets" in texts and f"{end}Timestamp" in texts:
            raise ConfigurationError(f"give {end}Offsets or {end}Timestamp, not both")
    if "offsetRanges" in texts and (both := ENDS.intersection(texts)):
        raise ConfigurationError(f"give offsetRanges or {min(both)}, not both")
    if "asOf" in texts and (others := {"offsetRanges", "topicId"}.intersection(texts)):
        raise ConfigurationError(f"give asOf or {min(others)}, not both")
    if "offsetRanges" in texts and "topicId" not in texts:
        raise ConfigurationError("offsetRanges are of one topic: give its topicId as well")
    starting = _places("startingOffsets", texts, "latest" if is_stream else "earliest")
    ending = _places("endingOffsets", texts, "latest")
    if not is_stream and starting == "latest":
        raise ConfigurationError("startingOffsets of a batch read can't be latest: nothing follows")
    if ending == "earliest":
        raise ConfigurationError("endingOffsets can't be earliest: nothing comes before")
    return ReadOptions(
        topic=topic,
        bootstrap=bootstrap,
        starting=starting,
        ending=ending,
        starting_ms=_time("startingTimestamp", texts),
        ending_ms=_time("endingTimestamp", texts),
        min_partitions=_number("minPartitions", texts, 1, _PARTITIONS_MAX),
        max_offsets_per_trigger=_number("maxOffsetsPerTrigger", texts, 1, _NUMBER_MAX),
        max_bytes_per_trigger=_number("maxBytesPerTrigger", texts, 1, _NUMBER_MAX),
        max_files_per_trigger=_number("maxFilesPerTrigger", texts, 1, _NUMBER_MAX),
        fail_on_data_loss=_flag("failOnDataLoss", texts, default=True),
        keys=tuple(key.encode() for key in _texts("keys", texts)),
        tags=_texts("tags", texts),
        columns=_texts("columns", texts),
        filter_pushdown=_flag("filterPushdown", texts, default=False),
        offset_ranges=_spans("offsetRanges", texts),
        topic_id=_id("topicId", texts),
        as_of=_as_of("asOf", texts),
        tiered=cast(Tiered, _one_of("tiered", texts, TIERED)),
        tier_url=texts.get("tier_url", "").rstrip("/"),
    )


def write_options(given: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """Raises ConfigurationError."""
    texts = _known(given, STREAM_WRITE if is_stream else WRITE)
    topic, bootstrap = _where(texts)
    write_id = texts.get("writeId", "")
    idempotent = _flag("idempotent", texts, default=True)
    if write_id and not idempotent:
        raise ConfigurationError("writeId names an idempotent write: leave idempotent=false out")
    return WriteOptions(
        topic=topic,
        bootstrap=bootstrap,
        idempotent=idempotent,
        write_id=write_id,
        acks=_one_of("acks", texts, ("all", "quorum", "leader")),
        compression=_one_of("compression", texts, ("lz4", "zstd", "none")),
        topic_id=_id("topicId", texts),
    )


def _known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The options by their own names; Spark has put them into lower case."""
    by_lower = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for name, text in given.items():
        if name.lower() not in by_lower:
            near = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
            meant = " or ".join(by_lower[each] for each in near)
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(names)}"
            raise ConfigurationError(f"there is no option {name} here: {hint}")
        found[by_lower[name.lower()]] = text
    return found


def _where(texts: Mapping[str, str]) -> tuple[str, str]:
    for name, example in (("topic", "flights"), ("bootstrap", "127.0.0.1:7400")):
        if not texts.get(name, "").strip():
            raise ConfigurationError(f'option {name} is missing, such as "{example}"')
    topic = texts["topic"]
    try:
        check_topic_name(topic)
    except InvalidTopicNameError as error:
        raise ConfigurationError(error.message) from error
    return topic, texts["bootstrap"]


def _places(name: str, texts: Mapping[str, str], default: Literal["earliest", "latest"]) -> Places:
    text = texts.get(name, default).strip()
    if text in ("earliest", "latest"):
        return cast(Literal["earliest", "latest"], text)
    wrong = ConfigurationError(
        f'{name} is earliest, latest, or offsets by partition as JSON such as {{"0": 17, "1": '
        f'"earliest"}}, not {text[:100]!r}'
    )
    found = _json(text, wrong)
    if not isinstance(found, dict) or not found:
        raise wrong
    places: dict[int, Place] = {}
    for partition, place in found.items():
        is_offset = type(place) is int and 0 <= place <= _NUMBER_MAX
        if not partition.isdecimal() or not (is_offset or place in ("earliest", "latest")):
            raise wrong
        if int(partition) in places:
            raise wrong
        places[int(partition)] = place
    return places


def _spans(name: str, texts: Mapping[str, str]) -> Spans | None:
    text = texts.get(name)
    if text is None:
        return None
    wrong = ConfigurationError(
        f'{name} is JSON such as {{"0": [[0, 17], [20, 30]]}}: by partition, ascending ranges that '
        f"have a record each, ends exclusive, not {text[:100]!r}"
    )
    found = _json(text, wrong)
    if not isinstance(found, dict):
        raise wrong
    spans: dict[int, Sequence[tuple[int, int]]] = {}
    for partition, ranges in found.items():
        if not (partition.isdecimal() and len(partition) < 10 and isinstance(ranges, list)):
            raise wrong
        pairs = [tuple(each) for each in ranges if isinstance(each, list)]
        flat = [number for pair in pairs for number in pair]
        is_whole = len(pairs) == len(ranges) and all(len(pair) == 2 for pair in pairs)
        if not is_whole or any(type(each) is not int for each in flat) or int(partition) in spans:
            raise wrong
        steps = pairwise([0, *flat, _NUMBER_MAX])
        # Ranges may touch; each has a record.
        if not all(low < high if at % 2 else low <= high for at, (low, high) in enumerate(steps)):
            raise wrong
        spans[int(partition)] = pairs
    return spans


def as_of_text(moment: AsOf) -> str:
    """As the option ``asOf`` has it."""
    return json.dumps(
        {
            "topicId": moment.topic_id.hex(),
            "leaseId": moment.lease_id.hex(),
            "starts": {str(number): at for number, at in moment.starts.items()},
            "ends": {str(number): at for number, at in moment.ends.items()},
        }
    )


def _as_of(name: str, texts: Mapping[str, str]) -> AsOf | None:
    text = texts.get(name)
    if text is None:
        return None
    wrong = ConfigurationError(
        f"{name} is what icecore.spark.hold(…).as_of says, as it is, not {text[:100]!r}"
    )
    found = _json(text, wrong)
    if not isinstance(found, dict) or found.keys() != {"topicId", "leaseId", "starts", "ends"}:
        raise wrong
    ids = [found["topicId"], found["leaseId"]]
    if not all(isinstance(each, str) and re.fullmatch("[0-9a-f]{32}", each) for each in ids):
        raise wrong
    places: list[dict[int, int]] = []
    for each in (found["starts"], found["ends"]):
        if not isinstance(each, dict) or not all(number.isdecimal() for number in each):
            raise wrong
        places.append({int(number): at for number, at in each.items()})
        if any(type(at) is not int or not 0 <= at <= _NUMBER_MAX for at in each.values()):
            raise wrong
    starts, ends = places
    if starts.keys() != ends.keys() or any(starts[number] > ends[number] for number in ends):
        raise wrong
    return AsOf(bytes.fromhex(ids[0]), bytes.fromhex(ids[1]), starts, ends)


def _id(name: str, texts: Mapping[str, str]) -> bytes:
    text = texts.get(name, "")
    if not re.fullmatch(r"([0-9a-f]{32})?", text):
        raise ConfigurationError(f"{name} is a topic id of 32 hex digits, not {text[:100]!r}")
    return bytes.fromhex(text)


def _json(text: str, wrong: ConfigurationError) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(found)) < len(found):
            raise wrong  # json would take the last one of equal names
        return dict(found)

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        raise wrong from None


def _texts(name: str, texts: Mapping[str, str]) -> tuple[str, ...]:
    """A JSON list of strings, or names with commas between."""
    text = texts.get(name)
    if text is None:
        return ()
    wrong = ConfigurationError(
        f'{name} is a list, such as a,b or ["a", "b"], of texts that are not empty and differ, '
        f"not {text[:100]!r}"
    )
    found = text.split(",")
    if text.lstrip().startswith("["):
        found = _json(text, wrong)
    is_list = isinstance(found, list) and all(isinstance(each, str) for each in found)
    if not is_list or not all(found) or not found or len(set(found)) < len(found):
        raise wrong
    return tuple(found) if text.lstrip().startswith("[") else tuple(map(str.strip, found))


def _time(name: str, texts: Mapping[str, str]) -> int | None:
    text = texts.get(name)
    if text is None:
        return None
    from icecore.client.conditions import time_ms  # it imports the codec, and few reads have times

    try:
        return time_ms(name, int(text) if text.isdecimal() else datetime.fromisoformat(text))
    except (ValueError, InvalidRequestError):
        raise ConfigurationError(
            f"{name} is milliseconds since 1970 UTC, or a time with time zone such as "
            f"2013-03-01T00:00:00Z, not {text[:100]!r}"
        ) from None


def _number(name: str, texts: Mapping[str, str], low: int, high: int) -> int:
    """0 when it is not given."""
    text = texts.get(name)
    if text is None:
        return 0
    is_short = len(text) <= len(str(high))  # Python refuses to read numbers of thousands of digits
    if not is_short or not text.isdecimal() or not low <= int(text) <= high:
        raise ConfigurationError(f"{name} is a whole number of {low} to {high}, not {text[:100]!r}")
    return int(text)


def _flag(name: str, texts: Mapping[str, str], *, default: bool) -> bool:
    text = texts.get(name, "true" if default else "false").lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"{name} is true or false, not {text[:100]!r}")
    return text == "true"


def _one_of(name: str, texts: Mapping[str, str], known: tuple[str, ...]) -> str:
    text = texts.get(name, known[0])
    if text not in known:
        raise ConfigurationError(f"{name} is one of {', '.join(known)}, not {text[:100]!r}")
    return text
