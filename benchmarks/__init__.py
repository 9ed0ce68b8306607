"""Benchmarks: what this machine's disk allows, and how near produce and fetch come to it."""
