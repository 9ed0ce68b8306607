"""The seeded mistake of clients that begin at nodes. Its world: ``directed_bootstrap``."""

from icecore.client.cluster import metadata
from tests.simulation.mistakes import Mistake, patch


def first_answer_is_believed() -> Mistake:
    """Principle: (ADR 0011) a node that was cut off says alone which topic has a name."""
    return patch(metadata, "_OPINIONS_MAX", 1)
