"""All replicas of a node: look-up, the roles that records give, seals, shortage of space.

It imports the roles and below; one of these is ``replica/damage.py``.
"""
