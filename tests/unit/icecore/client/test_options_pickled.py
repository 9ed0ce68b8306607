"""Clients that a pool of processes, or Spark, tries to take along; and what may travel."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import icecore
from icecore import blocking, errors
from icecore.codec.record import Record

NOBODY = "127.0.0.1:9"


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", ["Producer", "Consumer", "Admin", "Lookup"])
async def test_a_client_stays_in_its_process(kind: str, take: Callable[[Any], Any]) -> None:
    arguments = (NOBODY,) if kind in ("Producer", "Admin") else (NOBODY, "t")
    why = rf"a {kind} can't be pickled or copied: .* in each process"
    with pytest.raises(TypeError, match=why):
        take(getattr(icecore, kind)(*arguments))


@pytest.mark.parametrize("kind", ["Admin", "Lookup"])
def test_so_does_one_for_threads(kind: str) -> None:
    arguments = (NOBODY,) if kind == "Admin" else (NOBODY, "t")
    with (
        getattr(blocking, kind)(*arguments) as client,
        pytest.raises(TypeError, match=r"can't be pickled or copied: .* in each process"),
    ):
        pickle.dumps([client])


@pytest.mark.parametrize("kind", errors._all_subclasses(errors.IcecoreError))
def test_errors_travel_whole(kind: type[errors.IcecoreError]) -> None:
    error = kind("why", topic="t", n=3)
    for found in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (type(found), str(found)) == (kind, "why")
        assert (found.message, found.metadata) == ("why", {"topic": "t", "n": "3"})


def test_records_travel_whole() -> None:
    record = Record(b"v", b"k", 1, ("a",), (("h", None),), offset=7, partition=2, topic="t")
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == record
