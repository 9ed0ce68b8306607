"""The content of an object in the bucket: manifests, Parquet, raw batches, tables, settings."""
