"""The calls that a node answers: messages to values, a call into the rooms below, an answer.

It imports everything of the node but ``node.py``.
"""
