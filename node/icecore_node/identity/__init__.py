"""The next heartbeat of a node, its lease, and its waiting readers: state that many parts share.

Who the node is by its registration is ``Identity`` of ``icecore_node/context.py``.
"""
