"""Where the coordinator's metadata is durable: the port, and SQLite behind it.

It imports only ``icecore.errors``.
"""
