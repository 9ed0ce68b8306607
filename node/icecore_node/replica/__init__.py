"""One copy of one segment: its facts, its life, and who may work on it.

It imports storage, io, the context, ``identity/`` and ``icecore_replication``.
"""
