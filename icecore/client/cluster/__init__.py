"""The client's view of the cluster: connection, leaders, segments and offsets."""
