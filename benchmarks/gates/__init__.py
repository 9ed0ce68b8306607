"""Gates: ratios within one run, both sides measured in turns, each held against its band."""
