"""The settings of a topic, stored beside its copies, so that it can be rebuilt from the bucket.

Each alteration is an object of its own, since keys are never reused; the highest number counts. It
names the topic and the alteration, so that a late order changes nothing, and has a digest of
itself, as manifests have. A deletion is an alteration, too, and so is a log start that no copy
tells::

    TOPIC/_icecore/settings/NUMBER.json

The node that puts one removes the superseded ones. It keeps the newest few, in case of damage, and
the ``landmarks``: with these the highest number is found by looking for objects by name. Listings
may be late: by a late one, new settings could be put at a low number that was freed.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from icecore.errors import ConflictError, InvalidRequestError
from icecore.tier_records import topic_folder
from icecore_node.remote.format.manifest import TieredDamageError
from icecore_node.remote.store.object_store import (
    ObjectExistsError,
    ObjectMissingError,
    ObjectStore,
)

VERSION: Final = 1
FOLDER: Final = "_icecore/settings"
SETTINGS_PATH: Final = re.compile(rf"{FOLDER}/(\d{{20}})\.json")
"""Path of settings below the folder of a topic."""
SETTINGS_BYTES_MAX: Final = 512 << 10
ORDER_BYTES_MAX: Final = 32 << 10
TRIES: Final = 8
"""Maximum number of tries, when other nodes take the next number meanwhile."""
KNOWN_MAX: Final = 10_000
NEWEST_KEPT: Final = 4
LOG_STARTS_MAX: Final = 16_384
_NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class StoredSettings:
    """Version of an alteration, and the settings as JSON; empty = the order has no settings."""

    version: int = 0
    text: str = ""
    partition_counts: tuple[int, ...] = ()
    """All numbers of partitions that the topic has had, oldest first. 0 = earlier ones are not
    known. Empty = the order does not say it."""
    name: str = ""
    """The topic's name now; empty = the order does not say it."""
    is_deleted: bool | None = None
    """None = the order does not say it. True without settings: whatever is stored stays, and the
    topic is deleted."""
    log_starts: tuple[int, ...] = ()
    """By partition, where its log starts at least; missing ones are 0."""

    @property
    def is_said(self) -> bool:
        """Return whether there is anything to store."""
        return bool(self.text or self.is_deleted)


def check_settings_order(settings: StoredSettings) -> None:
    """Raises InvalidRequestError for invalid settings."""
    if settings.is_said and not 0 <= settings.version <= _NUMBER_MAX:
        raise InvalidRequestError(f"no settings have version {settings.version}")
    if not settings.text:
        return
    if len(settings.text.encode()) > ORDER_BYTES_MAX:
        raise InvalidRequestError(f"settings of a topic are at most {ORDER_BYTES_MAX} bytes")
    if not is_history(settings.partition_counts):
        raise InvalidRequestError(f"no topic has had {settings.partition_counts} partitions")
    if not are_offsets(settings.log_starts):
        raise InvalidRequestError("no topic has logs that start there, or as many partitions")
    try:
        is_mapping = isinstance(json.loads(settings.text), dict)
    except (ValueError, RecursionError):
        is_mapping = False
    if not is_mapping:
        raise InvalidRequestError("settings of a topic are one JSON object")


def is_history(counts: Sequence[Any]) -> bool:
    """Return whether these can be numbers of partitions, one after the other."""
    is_whole = all(type(each) is int and each >= 0 for each in counts)
    return is_whole and all(one < other for one, other in pairwise(counts))


def are_offsets(starts: Sequence[Any]) -> bool:
    """Return whether the logs of a topic's partitions can start at these."""
    is_whole = all(type(each) is int and 0 <= each <= _NUMBER_MAX for each in starts)
    return is_whole and len(starts) <= LOG_STARTS_MAX


def settings_key(topic_id: bytes, number: int) -> str:
    """Return the key of one alteration."""
    return f"{topic_folder(topic_id)}/{FOLDER}/{number:020d}.json"


def settings_object(cluster_id: bytes, topic_id: bytes, settings: StoredSettings) -> bytes:
    """Encode the object to put."""
    body: dict[str, Any] = {
        "version": VERSION,
        "cluster_id": cluster_id.hex(),
        "topic_id": topic_id.hex(),
        "settings_version": settings.version,
        "settings": json.loads(settings.text),
    }
    if settings.partition_counts:
        body["partition_counts"] = [*settings.partition_counts]
    if settings.name:
        body["name"] = settings.name
    if settings.is_deleted is not None:
        body["is_deleted"] = settings.is_deleted
        body["log_starts"] = _without_zeros(settings.log_starts)
    return _sealed(body)


def _without_zeros(starts: Sequence[int]) -> list[int]:
    """Without those at the end."""
    count = max((at for at, each in enumerate(starts, 1) if each), default=0)
    return [*starts[:count]]


def _sealed(body: Mapping[str, Any]) -> bytes:
    return _json({**body, "sha256": _own_digest(body)})


def parse_settings(data: bytes, topic_id: bytes) -> dict[str, Any]:
    """Parse an object as it was put. Raises TieredDamageError for anything else."""
    try:
        found = json.loads(data)
        proof = found.pop("sha256")
        is_whole = proof == _own_digest(found)
        is_known = found["version"] == VERSION and found["topic_id"] == topic_id.hex()
        is_known &= isinstance(found["settings"], dict) and isinstance(found["cluster_id"], str)
        is_known &= type(found["settings_version"]) is int
        is_known &= is_history(found.get("partition_counts", ()))
        is_known &= type(found.get("is_deleted", False)) is bool
        is_known &= isinstance(found.get("name", ""), str)
        is_known &= are_offsets(found.get("log_starts", ()))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TieredDamageError(f"settings that can't be read: {error}") from error
    if not is_whole or not is_known:
        raise TieredDamageError("stored topic settings are damaged or belong to another topic")
    return dict(found)


class SettingsKeeper:
    """Puts the settings in orders. It remembers what it has put, so that most orders cost
    nothing."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], int] = {}
        """Version by cluster and topic; the oldest goes first."""

    async def keep(
        self, store: ObjectStore, cluster_id: bytes, topic_id: bytes, settings: StoredSettings
    ) -> None:
        """Make these settings, or later ones, the ones that count.

        Raises:
            ConflictError: Others came first again and again.
            ObjectStoreError, ObjectStoreBusyError: As the store says it.
        """
        key = (cluster_id, topic_id)
        if not settings.is_said or self._known.get(key, -1) >= settings.version:
            return
        for _ in range(TRIES):
            number = await _highest(store, topic_id)
            if number and await self._is_kept(store, number, cluster_id, topic_id, settings):
                break
            data = await _next_object(store, number, cluster_id, topic_id, settings)
            try:
                await store.put_if_absent(settings_key(topic_id, number + 1), data)
            except ObjectExistsError:
                continue
            if not await self._is_kept(store, number + 1, cluster_id, topic_id, settings):
                continue  # it was confirmed, and is not there, or not as it was put
            await _remove_superseded(store, topic_id, number + 1)
            break
        else:
            raise ConflictError("the settings of the topic are altered by others: look again")
        self._known[key] = settings.version
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    async def _is_kept(
        self,
        store: ObjectStore,
        number: int,
        cluster_id: bytes,
        topic_id: bytes,
        settings: StoredSettings,
    ) -> bool:
        """Return whether this object holds this alteration, or a later one."""
        try:
            data = await store.get_whole(settings_key(topic_id, number), SETTINGS_BYTES_MAX)
            found = parse_settings(data, topic_id)
        except (ObjectMissingError, InvalidRequestError, TieredDamageError):
            return False
        if found["cluster_id"] != cluster_id.hex():
            return False
        if found["settings_version"] != settings.version:
            return bool(found["settings_version"] > settings.version)
        # What an earlier version of icecore put says less of the same alteration.
        lacks_counts = bool(settings.partition_counts) and not found.get("partition_counts")
        lacks_word = settings.is_deleted is not None and "is_deleted" not in found
        return not (lacks_counts or lacks_word)


async def _next_object(
    store: ObjectStore, number: int, cluster_id: bytes, topic_id: bytes, settings: StoredSettings
) -> bytes:
    """Encode what comes behind the highest number. An order without settings keeps those that are
    there, if they can be read."""
    if settings.text:
        return settings_object(cluster_id, topic_id, settings)
    said = {"settings_version": settings.version, "is_deleted": True}
    try:
        data = await store.get_whole(settings_key(topic_id, number), SETTINGS_BYTES_MAX)
        found = parse_settings(data, topic_id)
    except (ObjectMissingError, InvalidRequestError, TieredDamageError):
        return settings_object(cluster_id, topic_id, replace(settings, text="{}"))
    return _sealed({**found, **said, "cluster_id": cluster_id.hex()})


def landmarks(number: int) -> set[int]:
    """Return the numbers that stay below a highest number: powers of two, and that number with low
    bits cleared. Below this number, a higher one keeps no others."""
    bits = range(number.bit_length())
    return {1 << bit for bit in bits} | {number >> bit << bit for bit in bits}


async def _highest(store: ObjectStore, topic_id: bytes) -> int:
    """Return the highest number; 0 = none. It is found bit by bit. The lowest number that begins
    with the bits found so far and a one is a landmark, if any exists."""
    bit = 1
    while await _is_there(store, topic_id, bit):
        bit <<= 1
    number = bit = bit >> 1
    while bit := bit >> 1:
        if await _is_there(store, topic_id, number | bit):
            number |= bit
    return number


async def _is_there(store: ObjectStore, topic_id: bytes, number: int) -> bool:
    try:
        await store.head(settings_key(topic_id, number))
    except ObjectMissingError:
        return False
    return True


async def _remove_superseded(store: ObjectStore, topic_id: bytes, newest: int) -> None:
    """Remove superseded settings. Objects that a late listing hides, or that a failure leaves, go
    after the next alteration."""
    topic, stay = topic_folder(topic_id) + "/", landmarks(newest)
    async for each in store.list(topic + FOLDER):
        match = SETTINGS_PATH.fullmatch(each.key.removeprefix(topic))
        number = int(match[1]) if match else newest
        if number <= newest - NEWEST_KEPT and number not in stay:
            await store.delete(each.key)


def _own_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_json(body)).hexdigest()


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
