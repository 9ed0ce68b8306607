"""Entry of a topic's table for one published object."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from icecore.errors import ConflictError, InvalidRequestError
from icecore.tier_records import topic_folder
from icecore_node.remote.format.manifest import Manifest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A published object, as the log names it."""

    path: str
    """Path below the topic's folder."""
    size_bytes: int
    records: int
    lowest: Mapping[str, int | str]
    """Values by column, for readers that skip objects: exact, since some answer from them alone."""
    highest: Mapping[str, int | str]


def table_file(manifest: Manifest) -> TableFile | None:
    """Return the table's entry for a segment; None when it has no rows."""
    groups, parquet = manifest.row_groups, manifest.parquet
    if not groups:
        return None
    facts = manifest.facts
    path = parquet.key.removeprefix(topic_folder(facts.topic_id) + "/")
    lowest: dict[str, int | str] = {"partition": facts.partition}
    highest = dict(lowest)
    lowest["timestamp"] = _iso(min(each.min_timestamp_ms for each in groups))
    highest["timestamp"] = _iso(max(each.max_timestamp_ms for each in groups))
    if groups[0].is_dense and groups[-1].is_dense:
        lowest["offset"] = groups[0].base_offset
        highest["offset"] = groups[-1].end_offset - 1
    return TableFile(path, parquet.size_bytes, manifest.records, lowest, highest)


def _iso(timestamp_ms: int) -> str:
    """Format a time as Delta's statistics have it."""
    text = (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class TableDifferences(NamedTuple):
    """Objects of a partition, by their paths."""

    unnamed: list[str]
    """Those that the table lacks, in the order of the question."""
    taken_out: list[str]
    """Those that only the table names."""


def check_paths(partition: int, paths: Sequence[str]) -> None:
    """Raises InvalidRequestError for one of another partition, or one that is named twice."""
    if len({*paths}) != len(paths):
        raise InvalidRequestError("an object is named twice")
    strangers = [path for path in paths if not path.startswith(f"{partition}/")]
    if strangers:
        raise InvalidRequestError(f"{strangers[0]} is not of partition {partition}")


def to_add(
    present: Container[str], paths: Sequence[str], told: Sequence[TableFile]
) -> list[TableFile]:
    """Return the entries of a partition's objects that the table does not name yet.

    Raises:
        ConflictError: The order has no entry for one of them: the table has changed meanwhile.
    """
    known = {each.path: each for each in told}
    missing = [path for path in paths if path not in present]
    unknown = [path for path in missing if path not in known]
    if unknown:
        raise ConflictError(f"the table named {unknown[0]} a moment ago")
    return [known[path] for path in missing]
