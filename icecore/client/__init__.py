"""The client: producing, consuming, finding and administration over asyncio.

Import the names from ``icecore``; the same for threads is in ``icecore/blocking``.
"""

from icecore.client.admin.admin import Admin
from icecore.client.consume.consumer import Consumer
from icecore.client.lookup.lookup import Lookup
from icecore.client.produce.producer import Producer

__all__ = ["Admin", "Consumer", "Lookup", "Producer"]
