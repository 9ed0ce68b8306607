"""The client for programs without an event loop: the same classes, blocking, for any thread.

All of them share one background thread that runs an event loop. Everything that happens there is
the asyncio client; this room only crosses the border between threads, in bulk where it matters.
"""

from icecore.blocking.admin import Admin
from icecore.blocking.consumer import Consumer
from icecore.blocking.lookup import Lookup
from icecore.blocking.producer import Producer, SendHandle

__all__ = ["Admin", "Consumer", "Lookup", "Producer", "SendHandle"]
