"""Facts that a node cannot derive and must not lose; the end of a process whose sync failed.

It imports the files' room and ``icecore_node/ports.py``.
"""
