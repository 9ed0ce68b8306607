"""A node as a member of its cluster: registration, heartbeats, records that are pushed, leaving."""
