"""All replicas of a node: look-up, the roles that records give, damage, shortage of space.

It imports the roles and below.
"""
