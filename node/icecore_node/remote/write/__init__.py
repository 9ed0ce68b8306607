"""How the leader of an order writes to the bucket: uploads, merges, table revisions, sweeps."""
