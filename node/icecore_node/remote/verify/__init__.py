"""Compare a bucket with what it should hold, mend it, and restore from it."""
