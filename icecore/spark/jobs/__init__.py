"""Jobs of a data pipeline on Spark: newest values, exports, checks and loads of whole topics.

``python -m icecore.spark.jobs JOB …`` runs one here, ``spark-submit`` runs the same file on a
cluster. A job works in steps that are noted when they are done, so a run that was killed is simply
started again. docs/spark-jobs.md says what each of them promises.
"""
