"""The threads of a node: the fixed pool that writes, readers, heavy work, and the tail in memory.

It imports the storage port and ``icecore_node/ports.py``; it knows bytes and no protocol.
"""
