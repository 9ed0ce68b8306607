"""Deciding what a segment holds after its leader was lost, up to the loss of all replicas."""
