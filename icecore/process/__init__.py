"""The edge of every process of ours: settings, the real clock, logs, starting another process.

It imports ``icecore/errors.py`` and ``icecore/extras.py``; ``process/log.py`` lies lowest.
"""
