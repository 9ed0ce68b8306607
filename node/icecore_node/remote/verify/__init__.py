"""How a bucket is compared with what it should hold, mended, and restored from."""
