"""The progress of producers in a partition, for clients whose producers number themselves.

A task of a job that is run again asks so what an earlier attempt has appended, before it appends
anything itself. Each question looks at all producers of a partition, so a request has few of them.
"""

from typing import Final

from icecore.errors import InvalidRequestError
from icecore.model import ProducerEpoch, ProducerId
from icecore.v1 import data_pb2
from icecore_replication.producers import PRODUCERS_MAX, ProducerTable

QUESTIONS_MAX: Final = 16
"""In one request."""


class ProducerStates:
    """The answers to the questions of one request."""

    def __init__(self) -> None:
        self._questions = QUESTIONS_MAX
        self._room = PRODUCERS_MAX
        """How many producers the answer may still name."""

    def take(self) -> None:
        """Count a question. Raises InvalidRequestError: There were enough."""
        self._questions -= 1
        if self._questions < 0:
            raise InvalidRequestError(
                f"a request may ask for the producers of at most {QUESTIONS_MAX} partitions: ask "
                "again for the others"
            )

    def add(
        self,
        table: ProducerTable,
        asked: data_pb2.ProducerRange,
        result: data_pb2.ListOffsetsResult,
    ) -> None:
        """Say how far the producers of a range have got.

        Raises:
            InvalidRequestError: There are too many for one answer.
        """
        known = table.states(
            ProducerId(asked.first_id), ProducerId(asked.last_id), ProducerEpoch(asked.epoch)
        )
        self._room -= len(known)
        if self._room < 0:
            raise InvalidRequestError(
                f"an answer names at most {PRODUCERS_MAX} producers: ask for fewer partitions or "
                "ids at a time"
            )
        for producer_id, next_sequence, oldest_sequence in known:
            result.producers.add(
                producer_id=producer_id,
                next_sequence=next_sequence,
                oldest_sequence=oldest_sequence,
            )
