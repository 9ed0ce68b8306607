"""Work in the background: scrub, digests, copies, deletions, and what to do as the disk fills.

It imports the registry and below.
"""
