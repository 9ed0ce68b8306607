"""Measure how cost grows: with partitions, segments, records of metadata, and with etcd below."""
