"""Orders of the coordinator to this node: open, fence, lead, follow, copy back, upload."""
