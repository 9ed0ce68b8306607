"""Decisions about object storage: copies of segments in it, and what depends on them. Pure."""
