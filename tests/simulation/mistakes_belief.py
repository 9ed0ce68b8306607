"""Seeded mistakes of who believes too much; see ``mistakes``. Worlds: ``directed_belief``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from icecore.errors import InvalidRequestError
from icecore.model import CoordinatorEpoch
from icecore_coordinator.state.records import Change
from icecore_coordinator.work import admission
from icecore_coordinator.work.recovery.case_calls import CaseCalls
from icecore_coordinator.work.segments import seal_checking, segment_opening
from icecore_coordinator.work.segments.seal_checking import SealChecker
from icecore_node.identity.identity import Identity
from icecore_node.maintenance import copying
from icecore_node.maintenance.digests import DigestReporter
from icecore_node.registry import assignments
from icecore_node.replica import order_checks
from icecore_node.replica.damage import Damage
from icecore_node.replica.replica import Replica
from icecore_replication.seal_check import SealClaim
from tests.simulation.mistakes import Mistake, patch


@contextmanager
def seal_is_believed() -> Iterator[None]:
    """R64: nobody is asked whether a seal is true, and what was seen does not matter."""

    async def check(self: SealChecker, claims: Sequence[SealClaim]) -> list[tuple[int, ...]]:
        return [each.replicas for each in claims]

    with patch(SealChecker, "check", check):
        yield


def any_stream_counts() -> Mistake:
    """R104: heartbeats need not prove whose they are."""
    return patch(admission, "check_stream", lambda *_: None)


@contextmanager
def only_watermarks_are_compared() -> Iterator[None]:
    """R64: the end of a seal is compared with what leaders told, and members are not asked."""

    async def ask(self: SealChecker, claims: Sequence[SealClaim]) -> dict[int, dict[int, object]]:
        return {each.segment_id: {} for each in claims}

    def agreed(claim: SealClaim, _: object) -> tuple[int, ...]:
        return claim.replicas

    with patch(SealChecker, "_ask", ask), patch(seal_checking, "agreed_replicas", agreed):
        yield


def other_digest_is_damage() -> Mistake:
    """R66: who has another full digest than the agreed one calls its copy damaged, unseen."""

    async def read_again(self: DigestReporter, replica: Replica) -> None:
        self._damage.condemn(replica, "its full digest is not the one that was agreed on")

    return patch(DigestReporter, "_read_again", read_again)


@contextmanager
def orders_set_aside() -> Iterator[None]:
    """R66: a sealed replica that is not what an order says gives way to a copy."""
    check = copying.check_write_back

    def wrong(replica: Replica, *order: Any, **flags: bool) -> None:
        if not replica.sealed:
            check(replica, *order, **flags)

    with (
        patch(copying, "check_write_back", wrong),
        patch(copying, "is_recorded", lambda *_: True),
    ):
        yield


def orders_cut_below_watermark() -> Mistake:
    """R66: an order cuts off what readers have seen."""
    return patch(copying, "check_write_back", lambda *_, **__: None)


def promise_is_kept_quiet() -> Mistake:
    """R65: nobody hears that a promise keeps a replica of an ACTIVE segment out."""
    return patch(Damage, "note_promise", lambda self, replica: None)


def recovery_promises_too_little() -> Mistake:
    """R65: a recovery asks again for a promise that is lower than what a replica promised."""
    return patch(CaseCalls, "_note_promise", lambda *_: None)


def any_coordinator_epoch_is_believed() -> Mistake:
    """R110: orders are carried out under any coordinator epoch, and it is stored with them."""
    return patch(order_checks, "check_coordinator_epoch", lambda *_: None)


def orders_teach_coordinator_epochs() -> Mistake:
    """R110: a node that is told of the next coordinator by an order leaves its own."""

    def hear(identity: Identity, coordinator_epoch: CoordinatorEpoch) -> None:
        identity.hear(coordinator_epoch)

    return patch(order_checks, "check_coordinator_epoch", hear)


def used_ids_are_tried_one_by_one() -> Mistake:
    """R65: ids that nodes have used for something else are given out nevertheless."""
    return patch(segment_opening, "pass_over_ids", lambda *_: Change())


def opened_first_stays() -> Mistake:
    """R111: what an order has opened under an id stays, whatever the record says."""
    return patch(assignments, "is_in_the_way", lambda *_: False)


def orders_are_the_record() -> Mistake:
    """R111: an order says itself that what readers have seen may go."""

    def wrong(replica: Replica, end_offset: int, digest: bytes, *, seal: bool) -> None:
        why = order_checks.contradiction(replica, end_offset, digest, is_lossy=True)
        if replica.life.is_intact and why:
            raise InvalidRequestError(why)

    return patch(copying, "check_write_back", wrong)


def any_disk_is_let_in() -> Mistake:
    """R67: a node may come with another disk whatever that costs."""
    return patch(admission, "check_disk", lambda *_: None)
