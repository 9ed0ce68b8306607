"""The side of replication that sends: the streams to followers and their service.

Leaders and followers are in ``icecore_node/replication/``.
"""
