"""Active logs in memory: replicated, and gone with the process that held them.

Sealed ones become files of the segment engine like all others.
"""
