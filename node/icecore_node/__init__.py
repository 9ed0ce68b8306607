"""The storage node: takes records over gRPC, writes them durably, and replicates them.

The data path reads top down: handlers → look-up → leader (which steps the pure core of
`replication`) → I/O worker → segment append, segment sync, index write → core again → high
watermark → response. What a replica may do follows from its life (`life.py`).
"""
