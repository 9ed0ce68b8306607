"""The index as derived data: it lags, it is begun anew, and it never raises for either."""

from collections.abc import Iterable

import pytest

from icecore.errors import IcecoreError, OutOfResourcesError, OutOfSpaceError, StorageError
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.index.points import Put
from tests.simulation.index import SimIndex, SimIndexDisk

STANDING: list[Put] = [("durable", b"log", b"here")]


class Failing(SimIndex):
    """Raises what it is told to, in changes or when it is wiped."""

    change: IcecoreError | None = None
    wiping: IcecoreError | None = None

    def write(self, puts: Iterable[Put]) -> None:
        if self.change is not None:
            raise self.change
        super().write(puts)

    def wipe(self) -> None:
        if self.wiping is not None:
            raise self.wiping
        self.change = None
        super().wipe()


@pytest.fixture
def inner() -> Failing:
    return Failing(SimIndexDisk(), None)


@pytest.fixture
def index(inner: Failing) -> DerivedIndex:
    return DerivedIndex(inner, lambda: STANDING)


@pytest.mark.parametrize("shortage", [OutOfSpaceError("full"), OutOfResourcesError("EMFILE")])
def test_what_finds_no_room_is_written_later_in_its_order(
    index: DerivedIndex, inner: Failing, shortage: IcecoreError
) -> None:
    index.write([("durable", b"k", b"0")])
    inner.change = shortage
    index.write([("durable", b"k", b"1"), ("offset", b"k", b"1")])
    index.write([("durable", b"k", b"2")])
    # Who lowers an entry has to know that it is lowered: see ``forget_from``.
    with pytest.raises(type(shortage)):
        index.flush()
    assert index.get("durable", b"k") == b"0" and index.lag_count == 3
    inner.change = None
    index.flush()
    assert index.get("durable", b"k") == b"2"
    assert index.get("offset", b"k") == b"1"
    assert index.rebuilds == 0


def test_a_damaged_one_begins_with_what_stands_and_what_was_to_be_written(
    index: DerivedIndex, inner: Failing
) -> None:
    index.write([("offset", b"old", b"1")])
    inner.change = StorageError("a block is damaged")
    index.write([("durable", b"k", b"1")])
    assert index.rebuilds == 1
    assert index.get("offset", b"old") is None
    assert index.get("durable", b"log") == b"here"
    assert index.get("durable", b"k") == b"1"


def test_damage_that_a_read_meets(index: DerivedIndex) -> None:
    index.write([("offset", b"k", b"1")])
    index._index._disk.is_rotten = True  # type: ignore[attr-defined]
    assert index.floor("offset", b"k", b"") is None
    assert index.get("durable", b"log") == b"here"
    assert index.rebuilds == 1


def test_without_any_database_all_goes_on_and_a_flush_tries_again(
    index: DerivedIndex, inner: Failing
) -> None:
    inner.change = StorageError("damaged")
    inner.wiping = OutOfResourcesError("no descriptors")
    index.write([("durable", b"k", b"1")])
    index.write([("durable", b"k", b"2")])
    index.delete_range("offset", b"", b"z")
    assert index.get("durable", b"k") is None
    index.flush()
    inner.wiping = None
    index.flush()
    assert index.get("durable", b"log") == b"here"
    index.write([("durable", b"k", b"3")])
    assert index.get("durable", b"k") == b"3"
