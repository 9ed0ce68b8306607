"""What every process of ours needs at its edge: settings, the real clock, limits, starting another.

It imports ``errors.py`` and the ports of ``icecore/rpc``.
"""
