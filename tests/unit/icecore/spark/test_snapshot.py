"""A snapshot of a topic that is deleted meanwhile, whichever call hears of it."""

from typing import Any, cast

import pytest

from icecore.errors import UnknownTopicError
from icecore.spark.snapshot import take_snapshot


class Leaving:
    """An ``Admin`` whose topic is gone from a certain call on."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise UnknownTopicError("no topic 't'")
            return [None] if name == "describe_topics" else {}

        return call


@pytest.mark.parametrize("calls", range(4))
def test_it_says_the_same_whichever_call_hears_of_it(calls: int) -> None:
    with pytest.raises(UnknownTopicError, match="topic t does not exist, or was deleted"):
        take_snapshot(cast(Any, Leaving(calls)), "t")
