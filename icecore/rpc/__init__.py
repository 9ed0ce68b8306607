"""How our processes talk: the ports, framing, messages to values, errors to statuses, gRPC.

It imports the codec, ``icecore/errors.py`` and ``icecore/model.py``; callers decide what is
said.
"""
