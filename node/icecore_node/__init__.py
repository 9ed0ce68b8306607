"""The storage node: takes records over gRPC, writes them durably, and replicates them.

The data path reads top down: handlers → router → partition (which steps the pure core of
`replication`) → I/O worker → segment append, segment sync, index write → core again → high
watermark → response.
"""
