"""A live seal is believed when its members say the same themselves."""

from dataclasses import replace

import pytest

from icecore.errors import ConflictError, NotEnoughReplicasError, StorageError
from icecore_replication.seal_check import MemberWord, SealClaim, agreed_replicas, check_watermark

CLAIM = SealClaim(
    segment_id=7,
    leader=1,
    end_offset=100,
    seal_digest=b"d",
    producer_digest=b"p",
    length_bytes=900,
    replicas=(1, 2, 3),
    min_insync_replicas=2,
)
FOLLOWER = MemberWord(
    durable_end_offset=100,
    seal_digest=b"d",
    producer_digest=b"p",
    length_bytes=900,
    high_watermark=100,
)
LEADER = replace(FOLLOWER, is_sealing=True)


def test_those_that_confirm_are_the_replicas() -> None:
    assert agreed_replicas(CLAIM, {1: LEADER, 2: FOLLOWER, 3: FOLLOWER}) == (1, 2, 3)
    assert agreed_replicas(CLAIM, {1: LEADER, 3: FOLLOWER}) == (1, 3)
    assert agreed_replicas(CLAIM, {1: LEADER, 2: FOLLOWER, 4: FOLLOWER}) == (1, 2)


def test_a_single_copy_needs_its_leader_alone() -> None:
    alone = replace(CLAIM, replicas=(1,), min_insync_replicas=1)
    assert agreed_replicas(alone, {1: LEADER}) == (1,)
    with pytest.raises(NotEnoughReplicasError):
        agreed_replicas(alone, {})


@pytest.mark.parametrize(
    "leader",
    [
        FOLLOWER,
        replace(LEADER, durable_end_offset=101),
        replace(LEADER, seal_digest=b"x"),
        replace(LEADER, producer_digest=b"x"),
        replace(LEADER, length_bytes=901),
    ],
)
def test_the_leader_itself_has_to_have_sent_it(leader: MemberWord) -> None:
    with pytest.raises(ConflictError):
        agreed_replicas(CLAIM, {1: leader, 2: FOLLOWER, 3: FOLLOWER})


@pytest.mark.parametrize("missing", [{2: FOLLOWER, 3: FOLLOWER}, {1: LEADER}, {}])
def test_too_few_answers_refuse_without_a_page(missing: dict[int, MemberWord]) -> None:
    with pytest.raises(NotEnoughReplicasError):
        agreed_replicas(CLAIM, missing)
    with pytest.raises(NotEnoughReplicasError):
        agreed_replicas(replace(CLAIM, min_insync_replicas=1), missing)


@pytest.mark.parametrize(
    "word",
    [
        replace(FOLLOWER, durable_end_offset=99),
        replace(FOLLOWER, durable_end_offset=101),
        replace(FOLLOWER, seal_digest=b"x"),
        replace(FOLLOWER, producer_digest=b"x"),
        replace(FOLLOWER, length_bytes=901),
        replace(FOLLOWER, high_watermark=101),
    ],
)
def test_a_member_that_contradicts_is_a_case_for_a_person(word: MemberWord) -> None:
    with pytest.raises(StorageError):
        agreed_replicas(CLAIM, {1: LEADER, 2: FOLLOWER, 3: word})


def test_a_seal_of_a_leader_that_is_not_listed_is_refused() -> None:
    with pytest.raises(NotEnoughReplicasError):
        agreed_replicas(replace(CLAIM, replicas=(2, 3)), {2: FOLLOWER, 3: FOLLOWER})


def test_no_end_below_what_was_seen() -> None:
    check_watermark(CLAIM, 100)
    with pytest.raises(StorageError, match="101"):
        check_watermark(CLAIM, 101)
