"""Object storage behind one port: S3, GCS, Azure, HDFS and folders; buckets and their errors."""
