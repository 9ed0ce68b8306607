"""The segment engine: one file per segment, group commit, start-up, reading.

It imports the other rooms of storage and ``icecore_node/ports.py``.
"""
