"""How readers get records of the bucket: opened copies, caches, and who may read at a time."""
