"""All that the node does with object storage, from the bucket to a reader.

``store/`` is the port to object storage and what stands behind it, ``format/`` what an object
holds, ``write/`` how copies, merged copies and table revisions get there, ``read/`` how readers get
records back, ``verify/`` how a bucket is checked and restored. ``access.py`` says whether the node
may use its store now, ``marker.py`` whose a bucket is.
"""
