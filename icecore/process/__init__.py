"""The edge of every process of ours: settings, the real clock, logs, starting another process.

It imports ``errors.py`` and the ports of ``icecore/rpc``; ``process/log.py`` lies below both.
"""
