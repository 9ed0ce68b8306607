"""The node's calls to the coordinator, those of many leaders in one message.

It imports the context and below; it carries words and decides nothing about segments. Registration
and heartbeats are in ``membership/``.
"""
