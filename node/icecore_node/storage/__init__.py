"""Storage on a node's disk: segments, data derived from them, and the control store.

``engine.py`` is the port of storage engines, ``batches/`` their shared code, ``segment_engine/``
the engine of production. ``replica_store.py`` joins engines and control store into the store that
the node sees. Outside of this package only the values of ``engine.py``, ``ReplicaStore``,
``make_store`` (``engines.py``) and ``DataFolder`` are used. The package itself imports the ports of
``icecore_node/ports.py``. Two programs look in from outside: ``offline.py`` changes the control
store of a stopped node, and ``inspect.py`` checks a data folder.
"""
