"""icecore: client of a replicated segment store for event streams.

``Producer``, ``Consumer``, ``Lookup`` and ``Admin`` are asyncio classes; ``icecore.blocking`` has
the same for threads. Names are loaded when first used, so that importing one small module of the
package does not load gRPC.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icecore import blocking, errors
    from icecore.client import Admin, Consumer, Lookup, Producer
    from icecore.client.consume.options import ConsumerOptions
    from icecore.client.produce.options import ProducerOptions
    from icecore.client.retries import Retry
    from icecore.client.types import BatchMetadata, LookupPage, ProducerMetrics, RecordMetadata
    from icecore.codec.record import Codec, Record
    from icecore.errors import IcecoreError
    from icecore.model import Acks
    from icecore.topic_settings import TopicSettings

__version__ = "0.1.0"

__all__ = [
    "Acks",
    "Admin",
    "BatchMetadata",
    "Codec",
    "Consumer",
    "ConsumerOptions",
    "IcecoreError",
    "Lookup",
    "LookupPage",
    "Producer",
    "ProducerMetrics",
    "ProducerOptions",
    "Record",
    "RecordMetadata",
    "Retry",
    "TopicSettings",
    "__version__",
    "blocking",
    "errors",
]

_HOMES = {
    "Acks": "icecore.model",
    "Admin": "icecore.client",
    "BatchMetadata": "icecore.client.types",
    "Codec": "icecore.codec.record",
    "Consumer": "icecore.client",
    "ConsumerOptions": "icecore.client.consume.options",
    "IcecoreError": "icecore.errors",
    "Lookup": "icecore.client",
    "LookupPage": "icecore.client.types",
    "Producer": "icecore.client",
    "ProducerMetrics": "icecore.client.types",
    "ProducerOptions": "icecore.client.produce.options",
    "Record": "icecore.codec.record",
    "RecordMetadata": "icecore.client.types",
    "Retry": "icecore.client.retries",
    "TopicSettings": "icecore.topic_settings",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "importlib"})


def __getattr__(name: str) -> Any:
    if name in ("blocking", "errors"):
        return importlib.import_module(f"icecore.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module icecore has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
