"""A node as a member of its cluster: registration, beats, records that are pushed, leaving."""
