"""What every process of ours needs at its edge: settings, the real clock, logs, starting another.

It imports ``errors.py`` and the ports of ``icecore/rpc``; ``process/log.py`` lies below both.
"""
