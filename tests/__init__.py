"""Tests, one folder per kind: unit, conformance, simulation, cluster, spark."""
