"""The lock of the engine: an adapter, so that nothing else in storage names ``threading``.

The executor (``icecore_node.ports.Executor``) decides which thread calls. Storage must expect two
calls at once, and what it protects never leaves it, so nobody passes locks in. The simulator, whose
threads are turns of one loop, runs with the same locks and always finds them free.
"""

import threading

Lock = threading.Lock
"""For state that worker and reader threads share; never held across I/O of the data path, but for
that of a lane of shared files, which its worker shares with nobody but in rare moments."""
