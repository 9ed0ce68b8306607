"""The replication protocol as pure functions and state machines.

Theory of operation: a *core* holds what one replica of one partition knows. Whatever happens to it
(a produce arrived, the disk confirmed a flush, a follower asked for more) is an *input*;
`step(inputs, now_ms)` changes the state and returns *effects*, the things the core wants done
(append these batches, answer this request, ask the coordinator for an ISR change). A core never
waits, reads a clock, opens a file or draws a random number, so the node and the deterministic
simulator drive the very same cores, each through a `Checked` that looks after its invariants. The
exhaustive model checker has a smaller state of its own; it calls the decisions, which are plain
functions here.

This package imports only pure parts of the standard library, `icecore.errors`,
`icecore.codec.batch` and `icecore.model`; `tests/tidy` keeps it so.
"""
