"""Benchmarks: what this machine's disk allows, and how near produce and fetch come to it.

``docs/performance.md`` lists the commands. ``run`` and ``gates`` print results or append them to a
file; ``make references`` writes the page from the files of ``benchmarks/results/``.
"""
