"""Attacks for ``benchmarks.abuse``: what a stranger can send to a port that is open."""
