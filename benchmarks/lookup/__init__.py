"""Measure look-ups, from the client and in the store."""
