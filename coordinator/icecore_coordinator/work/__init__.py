"""Work that the coordinator does by itself until it is done: open, recover, seal, repair, delete.

It imports the nodes' room and below.
"""
