"""How our processes talk: the ports, framing, messages to values, errors to statuses, gRPC.

It imports the codec, ``errors.py`` and ``model.py``; callers decide what is said.
"""
