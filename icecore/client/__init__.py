"""The client: producing, consuming, finding and administration over asyncio.

Import the names from ``icecore``; the same for threads is in ``icecore/blocking``. Names are loaded
when first used: a process that only asks for offsets loads neither producer nor consumer.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icecore.client.admin.admin import Admin
    from icecore.client.consume.consumer import Consumer
    from icecore.client.lookup.lookup import Lookup
    from icecore.client.produce.producer import Producer

__all__ = ["Admin", "Consumer", "Lookup", "Producer"]

_HOMES = {
    "Admin": "icecore.client.admin.admin",
    "Consumer": "icecore.client.consume.consumer",
    "Lookup": "icecore.client.lookup.lookup",
    "Producer": "icecore.client.produce.producer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module icecore.client has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
