"""The nodes as the coordinator sees them: sessions, what they last said, calls to them, pages.

It imports decisions, the state and the ledger.
"""
