"""Keep a cluster busy for an hour, and fail when a process of it grows."""
