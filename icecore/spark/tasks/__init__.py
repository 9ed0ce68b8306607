"""The tasks of a write: how the rows of each get into a topic once, however often it is run.

Nothing here knows Spark, so the simulator runs all of it on its own ports; ``icecore.spark.sink``
is what Spark calls.
"""
