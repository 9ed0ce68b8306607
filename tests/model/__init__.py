"""Explicit-state model checker of one segment's life; ``python -m tests.model.run``."""
