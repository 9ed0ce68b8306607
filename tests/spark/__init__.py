"""The Spark data source against a running cluster; needs the `spark` extra."""
