"""Let metadata that are an older copy, or empty, go on by what nodes have told. Pure.

``told`` are the words of nodes, ``partition_chain`` makes one log of what is known of a partition,
``adopt`` does so for all of them and moves every number above all that was given out.
"""
