"""The client: producing, consuming, finding and administration over asyncio.

Import the names from ``icecore``; the same for threads is in ``icecore/blocking``.
"""

from icecore.client.admin import Admin
from icecore.client.consumer import Consumer
from icecore.client.lookup import Lookup
from icecore.client.producer import Producer

__all__ = ["Admin", "Consumer", "Lookup", "Producer"]
