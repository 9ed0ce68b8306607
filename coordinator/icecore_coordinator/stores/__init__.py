"""The metadata store of the coordinator: the port, and SQLite behind it.

It imports values of ``icecore`` only.
"""
