"""Other systems, measured in the same run as ours: their servers, and their Python clients."""
