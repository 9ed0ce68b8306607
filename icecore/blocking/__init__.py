"""The client for programs without an event loop: the same classes, blocking, for any thread.

All of them share one background thread that runs an event loop. Everything that happens there is
the asyncio client; this room only crosses the border between threads, in bulk where it matters.
Names are loaded when first used, as those of ``icecore/client``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icecore.blocking.admin import Admin
    from icecore.blocking.consumer import Consumer
    from icecore.blocking.lookup import Lookup
    from icecore.blocking.producer import Producer, SendHandle

__all__ = ["Admin", "Consumer", "Lookup", "Producer", "SendHandle"]

_HOMES = {
    "Admin": "icecore.blocking.admin",
    "Consumer": "icecore.blocking.consumer",
    "Lookup": "icecore.blocking.lookup",
    "Producer": "icecore.blocking.producer",
    "SendHandle": "icecore.blocking.producer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module icecore.blocking has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
