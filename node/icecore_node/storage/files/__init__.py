"""The disk: files, folders, descriptors, the recycle pool, syncs. It knows no segment.

It imports ``icecore_node/ports.py`` only.
"""
