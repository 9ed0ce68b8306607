"""Work of a node beside serving: scrubs, digests, copies, salvage, deletions, space on disks."""
