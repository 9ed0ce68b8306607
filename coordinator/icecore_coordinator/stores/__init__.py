"""The metadata store of the coordinator: the port, and SQLite and etcd behind it.

It imports values of ``icecore`` and the settings only.
"""
