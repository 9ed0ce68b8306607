"""Seeded mistakes about batches that nobody can decode; see ``mistakes``."""

from unittest import mock

from icecore_node.serving.batch_checks import CheckedBatch
from tests.simulation.mistakes import Mistake


def contents_not_checked() -> Mistake:
    """R70: what has right checksums is believed."""

    async def believe(batches: list[CheckedBatch], *_: object) -> None:
        pass

    return mock.patch("icecore_node.serving.produce.check_contents", believe)
