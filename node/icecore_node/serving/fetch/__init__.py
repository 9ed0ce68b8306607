"""Fetches from memory, files and object storage, as stored batches or as plain records."""
