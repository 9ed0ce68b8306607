"""Orders of the coordinator to this node: open, fence, write back, roll, upload, sweep.

Roles and deletions come with the heartbeat stream: ``membership/updates.py``.
"""
