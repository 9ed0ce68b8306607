"""Seeded mistakes of coordinators on one etcd, in whole worlds; see ``mistakes``."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from icecore_coordinator.services import coordinator_service
from icecore_coordinator.stores import etcd_store
from icecore_coordinator.stores.etcd_follower import EtcdFollower
from icecore_coordinator.stores.etcd_messages import has_version
from icecore_coordinator.stores.followed_records import FollowedRecords
from icecore_node.identity.identity import Identity
from tests.simulation.mistakes import Mistake, patch


def head_is_not_compared() -> Mistake:
    """R120: a transaction of etcd compares records, and not who may write."""

    def always(key: bytes, value: bytes) -> Any:
        return has_version(key + b"?", 0)

    return patch(etcd_store, "has_value", always)


def what_was_followed_is_believed() -> Mistake:
    """R122: a take-over does not wait until its own head has come by the watch."""

    async def hand_over(self: EtcdFollower, head: object) -> dict[str, int] | None:
        await self._follow_no_more()
        return self._records.ahead if self._revision else None

    return patch(EtcdFollower, "hand_over", hand_over)


@contextmanager
def deletions_are_not_followed() -> Iterator[None]:
    """R122: a standby takes what is put, and not what goes, and nobody counts."""

    async def hand_over(self: EtcdFollower, head: object) -> dict[str, int] | None:
        for _ in range(100):
            if self._revision and self._records.head == head:
                break
            await asyncio.sleep(0.01)
        else:
            return None
        await self._follow_no_more()
        return self._records.ahead

    with (
        patch(FollowedRecords, "_remove", lambda *_: None),
        patch(EtcdFollower, "hand_over", hand_over),
    ):
        yield


@contextmanager
def an_old_etcd_gives_out_numbers() -> Iterator[None]:
    """R94: metadata that a person put back are taken for the newest."""
    with (
        patch(Identity, "check_revision", lambda *_: None),
        patch(coordinator_service, "check_heard_revision", lambda *_: None),
    ):
        yield
