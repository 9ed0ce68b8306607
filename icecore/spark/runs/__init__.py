"""The runs of a job: what one plans, notes and goes on with, and what it refuses.

Nothing here knows Spark, so the simulator runs all of it on its own ports; ``icecore.spark.jobs``
is what calls Spark. A run asks a port for what it needs: files of the job's folder (``Files``), and
an engine that reads, makes and writes (``ExportEngine``, ``BackfillEngine``).
"""
