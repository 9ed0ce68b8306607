"""Decisions about metadata: each makes a change or a refusal from a state. Pure.

It imports the state and ``icecore_replication``.
"""
