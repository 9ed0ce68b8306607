"""Calls between our processes: ports, framing, messages to values, errors to statuses, gRPC.

It imports the codec, the generated messages and values such as those of ``icecore/model.py``;
callers decide what is said.
"""
