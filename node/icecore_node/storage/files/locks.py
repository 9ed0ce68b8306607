"""The lock of the engine: an adapter, so that nothing else in storage names ``threading``.

Which thread calls is the executor's affair (``icecore_node.ports.Executor``); that two may call at
once is storage's own, and what it protects never leaves it. So nobody hands locks in: the
simulator, whose threads are turns of one loop, runs with the same ones and finds them free.
"""

import threading

Lock = threading.Lock
"""For state that worker and reader threads share; never held across I/O of the data path."""
