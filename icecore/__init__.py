"""icecore: client of a replicated segment store for event streams."""
