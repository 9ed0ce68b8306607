"""Administration: topics, segments, saved positions, object storage."""
