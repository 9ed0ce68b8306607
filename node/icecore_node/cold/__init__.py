"""Records of segments that no disk here holds, read from object storage for clients.

It imports tiering, the link and below; nobody here knows what a request looks like.
"""
