"""The derived index: the RocksDB port, the points of a segment, and beginning anew after damage.

It imports ``icecore_node/ports.py`` and the values of the engine's port.
"""
