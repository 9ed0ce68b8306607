"""Records of segments that no disk here holds, read from object storage for clients.

It imports tiering, the link and below; it does not know the messages of requests.
"""
