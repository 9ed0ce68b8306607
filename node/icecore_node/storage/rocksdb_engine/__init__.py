"""Active logs in a RocksDB database of their own, one sync for all that came together.

Sealed ones become files of the segment engine like all others.
"""
