"""Cases, systems, processes and figures that all benchmarks share."""
