"""Finding records by key, tag, header, time or offset, over all partitions and replicas."""
