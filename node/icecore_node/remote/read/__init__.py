"""Read records of the bucket: opened copies, caches, and limits on readers at a time."""
