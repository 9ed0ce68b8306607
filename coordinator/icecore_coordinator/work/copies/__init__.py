"""How many replicas a segment has: repaired, moved off leaving nodes, dropped, audited."""
