"""The calls that a node answers: a message becomes values, a lower package does the work, and an
answer goes back.

It imports everything of the node but ``node.py``.
"""
