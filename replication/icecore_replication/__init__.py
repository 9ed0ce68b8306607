"""The replication protocol as pure functions and state machines.

Theory of operation: a *core* holds what one replica of one partition knows. Whatever happens to it
(a produce arrived, the disk confirmed a flush, a follower asked for more) is an *input*;
`step(inputs, now_ms)` changes the state and returns *effects*, the things the core wants done
(append these batches, answer this request, ask the coordinator for an ISR change). A core never
waits, reads a clock, opens a file or draws a random number. So the node and the deterministic
simulator drive the very same cores, each through a `Checked` that looks after its invariants. The
exhaustive model checker has a smaller state of its own; it calls the very same decisions, which are
plain functions here.

Duties of the shell, which owns a core and performs its effects. Safety rests on each of them:

 1. One step at a time. The effects of a step are performed in their order, all of them before the
    next step. Nothing that an effect sets off may step the same core meanwhile.
 2. ``now_ms`` is monotonic and never goes back. It decides how long to wait, never what is true.
 3. Durable first. A role begins only on a log that is durable to its end. ``LocalDurable(end)`` is
    fed after the sync of every byte below ``end``. A fence is answered only after its promise is
    durable, and after ``Fenced`` and whatever was on its way to the disk then.
 4. ``Append`` and ``AppendReplica`` reach the log in the order of the effects, each batch directly
    behind the one before. An append that fails is ``LocalFailed``, after the last ``LocalDurable``
    before it; what is not durable is cut off before the log gets a role again.
 5. May overlap: the bytes of an ``Append`` may go to followers, in the order of the log, while the
    leader's own sync is under way. For a leader that crashes never resumes, so what only followers
    have is for recovery to decide on.
 6. May not: an answer to a producer before its ``CompleteProduce``, a report to the leader before
    its ``ReportProgress``, anything shown to readers above the last ``AdvanceHighWatermark``.
 7. Each ``request_id`` and each ``delivery_id`` is new, and comes back exactly once in an answer or
    an order to drop. Only a request that was fed as ``ProduceAbandoned`` may never be answered.
 8. A conversation (``ProposeIsr``, ``PrepareSuccessor``, ``CollectSealDigests``, ``SendSeal``) runs
    beside everything else, and its outcome is the next input: what was stored, what was definitely
    refused, or that nobody knows. "Refused" is said only if it can never happen any more.
 9. ``FollowerProgress`` is fed only for a report of our epoch, and with ``attach`` only after the
    chain at its end was found equal to ours. The old stream of a follower is dropped before the
    attach of a new one is fed (R8).
10. ``Tick`` is fed every now and then; nothing but waiting depends on how often.
11. After ``StepDown``, ``Quarantine`` or ``StopFollowing`` the core is finished. It may be fed: it
    answers each produce, gives each delivery back, and does nothing else.

This package imports only pure parts of the standard library, `icecore.errors`,
`icecore.codec.batch` and `icecore.model`; `tests/tidy` keeps it so.
"""
