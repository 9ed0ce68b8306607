"""What the metadata becomes: a state in, a change or a refusal out. Pure.

It imports the state and ``icecore_replication``.
"""
