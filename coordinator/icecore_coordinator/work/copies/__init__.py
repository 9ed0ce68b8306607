"""Keep the number of a segment's replicas: repair, move off leaving nodes, drop, audit."""
