"""Seeded mistakes about batches that nobody can decode; see ``mistakes``."""

from unittest import mock

from icecore_node.serving.batch_checks import CheckedBatch
from tests.simulation.mistakes import Mistake


def contents_not_checked() -> Mistake:
    """R70: what has right checksums is believed."""

    def believe(batches: list[CheckedBatch]) -> None:
        pass

    async def believe_heavy(batches: list[CheckedBatch], *_: object) -> None:
        pass

    believing = {"check_contents": believe, "check_heavy": believe_heavy}
    return mock.patch.multiple("icecore_node.serving.produce", **believing)
