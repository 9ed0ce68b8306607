"""The role of a replica at the moment: it leads or follows. Each role owns a protocol core.

It imports the replica, the link and below; it does not know which component gives the roles.
"""
