"""Reading tiered records from their objects in a Python process of Spark, without nodes."""
