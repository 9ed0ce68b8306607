"""The disk: files, folders, descriptors, syncs. It knows no segment.

It imports ``icecore_node/ports.py`` only.
"""
