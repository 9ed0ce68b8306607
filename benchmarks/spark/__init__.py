"""Measure Spark: first queries, plans, reads and streams."""
