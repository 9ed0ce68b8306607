"""The documentation as pages for a browser: `make docs` builds them from the documents as they are.

``navigation`` says where each document is found, ``links`` leads from the tree of files to that of
pages, ``protocol`` and ``python`` write the pages that no document has, and ``conf`` is Sphinx's.
"""
