"""What a node must never forget and cannot derive, and the end of a process whose sync failed.

It imports the files' room and ``icecore_node/ports.py``.
"""
