"""Copies in object storage: uploads, merges, tables, sweeps, imports, and local copies freed."""
