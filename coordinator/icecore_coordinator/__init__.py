"""The control plane: which nodes are alive, who leads which segment, what happens when one fails.

Decisions (``decisions/``) are pure functions of the committed state, and of who is up where that
matters. The ledger commits what they decide, one after the other, by compare-and-set.
Workers look for what is to be done, ask nodes and decide again; services parse, call and answer.
"""
