"""What the coordinator does by itself: open, recover, seal, repair, delete, until it is done.

It imports the nodes' room and below.
"""
