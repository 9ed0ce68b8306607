"""The calls that a coordinator answers: messages to values, a decision, an answer.

It imports everything of the coordinator but ``coordinator.py``.
"""
