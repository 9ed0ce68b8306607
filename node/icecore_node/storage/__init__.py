"""What a node keeps on its disk: segments, what is derived from them, and the control store.

``engine.py`` is the port of storage engines, ``batches/`` what they share, ``segment_engine/`` the
one of production; ``replica_store.py`` joins engines and control store to what the node sees.
Outside of this package only the values of ``engine.py``, ``ReplicaStore``, ``make_store``
(``engines.py``) and ``DataFolder`` are used; what it needs of the world is
``icecore_node/ports.py``. Two programs look in from outside: ``offline.py`` at the control store of
a stopped node, and ``inspect.py``.
"""
