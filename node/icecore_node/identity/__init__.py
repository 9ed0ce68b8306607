"""Identity and lease of the node, its next report of segments, and its waiting readers."""
