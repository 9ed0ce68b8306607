"""A suspended coordinator ends when what it has read is not what is stored any more."""

from typing import Any, cast

import pytest

from icecore.errors import SupersededError
from icecore.process.system import SystemRng
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.decisions.adoption.adopt import Adoption
from icecore_coordinator.suspended import SuspendedCoordinator

ADOPTION = Adoption(
    cluster_id=b"c" * 16,
    puts=(),
    deletes=(),
    coordinator_epoch=cast(Any, 9),
    revision=9,
    findings=(),
    segments_found=0,
    topics_found=0,
)


class Store:
    """In the place of a metadata store."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def adopt(self, *_: object) -> None:
        if self.error is not None:
            raise self.error


def suspended(error: Exception | None) -> SuspendedCoordinator:
    unused = cast(Any, None)
    return SuspendedCoordinator(
        unused, cast(Any, Store(error)), SystemRng(), "an older copy", TopicDefaults()
    )


async def test_another_copy_that_was_put_back_meanwhile_is_read() -> None:
    """Each further command would fail in the same way, and nobody else would be elected."""
    found = suspended(SupersededError("the head is another one"))
    with pytest.raises(SupersededError):
        await found._commit(ADOPTION)
    assert found.outdated.is_set()


async def test_an_adoption_is_its_end_and_a_failure_is_not() -> None:
    found = suspended(None)
    await found._commit(ADOPTION)
    assert found.outdated.is_set()
    found = suspended(OSError())
    with pytest.raises(OSError):
        await found._commit(ADOPTION)
    assert not found.outdated.is_set()
