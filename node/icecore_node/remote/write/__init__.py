"""Writes to the bucket on orders of the coordinator: uploads, merges, table revisions, sweeps."""
