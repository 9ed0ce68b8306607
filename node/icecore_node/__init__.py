"""The storage node: takes records over gRPC and the native transport, writes them durably, and
replicates them.

The data path reads top down: `serving/produce.py` → `registry/leaders.py` → `replication/leader.py`
(which steps the pure core of `icecore_replication`) → `io/io_pool.py` → the engine: append, sync,
index write → core again → high watermark → response. What a replica may do follows from its life
(`replica/life.py`).
"""
