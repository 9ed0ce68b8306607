"""Look-ups by key, tag, time and offset: the request, its plan, the search, the answer."""
