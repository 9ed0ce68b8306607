"""The control plane: which nodes are alive, who leads which segment, what happens when one fails.

Decisions are pure (`cluster_state`, `placement`); the shell around them feeds one queue of inputs,
writes each change to the metadata store with compare-and-set, and pushes assignments to the nodes.
"""
