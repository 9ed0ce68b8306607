"""What tests of several kinds share: fakes, small clusters, broken batches."""
