"""Real processes on loopback ports: kill, pause, restart, and check what was promised."""
