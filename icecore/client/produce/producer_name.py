"""The name of a producer: one id and rising epochs, so that an earlier owner can append no more."""

from collections.abc import Sequence
from dataclasses import dataclass

from icecore.client.checks import names, text
from icecore.errors import ConfigurationError, ProducerFencedError
from icecore.rpc.ports import Rng
from icecore.v1 import data_pb2


@dataclass
class ProducerName:
    """A name, what it is needed for, and whether it is ours."""

    name: str
    topics: tuple[str, ...]
    instance: int
    """Tells us from others that use the name."""
    is_taken: bool = False
    """Once it was ours it is only renewed: who takes it afterwards keeps it."""
    lost: ProducerFencedError | None = None

    def fill(self, request: data_pb2.InitProducerRequest) -> None:
        """Ask for the name's next epoch."""
        request.producer_name = self.name
        request.topics.extend(self.topics)
        request.instance = self.instance
        request.renew = self.is_taken


def producer_name(
    name: str, topics: Sequence[str], is_idempotent: bool, rng: Rng
) -> ProducerName | None:
    """The name a producer was given, None when it has none.

    Raises:
        TypeError: The name is no string, or the topics are no sequence of names.
        ConfigurationError: Topics without a name, or a name without numbered batches.
    """
    text("producer_name", name)
    wanted = names("producer_topics", topics)
    if not name and not wanted:
        return None
    if not name or not is_idempotent:
        raise ConfigurationError("producer_topics need a producer_name, and that idempotent=True")
    return ProducerName(name, wanted, int.from_bytes(rng.bytes(8), "little"))
