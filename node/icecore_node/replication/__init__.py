"""How one segment is replicated: its leader, its followers, and the streams they receive."""
