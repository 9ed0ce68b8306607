"""The default storage engine and the data folder it lives in: segment files, index, control store.

What a replica needs of any engine is ``storage/store.py``, what an engine needs of the world is
``icecore_node/ports.py``: storage imports nothing else of the node. Only the programs look in: the
node's (``__main__.py`` opens ``DataFolder`` and ``SegmentFileStore`` with their settings),
``offline.py`` for the control store of a stopped node, and ``inspect.py``, which is one itself.
"""
