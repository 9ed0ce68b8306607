"""The nodes as the coordinator sees them: sessions, what they last said, calls to them, alerts.

It imports decisions and the state.
"""
