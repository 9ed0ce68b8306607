"""The metadata in memory: records, indexes over them, their JSON. Pure.

It imports values of ``icecore`` only.
"""
