"""What a replica does at the moment: lead or follow. Each role owns a protocol core.

It imports the replica, the link and below; nobody here knows who gives the roles.
"""
