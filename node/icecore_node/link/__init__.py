"""The node's conversation with the coordinator: registration, heartbeats and the lease, batched
calls.

It imports the replica's room and below; it carries words and decides nothing about segments.
"""
