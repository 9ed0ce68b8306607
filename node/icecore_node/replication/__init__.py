"""Replicate one segment: its leader, its followers, and the streams they receive.

The cores in ``icecore_replication`` decide, and this room carries out. ``serving/replication/``
sends.
"""
