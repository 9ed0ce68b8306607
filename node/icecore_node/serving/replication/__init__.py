"""The side of replication that sends: the streams to followers and their service."""
