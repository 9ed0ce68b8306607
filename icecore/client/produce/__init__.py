"""Producing: records in batches by partition, acknowledged once and in order."""
