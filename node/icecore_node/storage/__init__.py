"""The default storage engine and the data folder it lives in: segment files, index, control store.

Nothing outside looks further in than ``SegmentFileStore`` and ``DataFolder``; what a replica needs
of any engine is ``storage/store.py``, what an engine needs of the world is
``icecore_node/ports.py``.
"""
