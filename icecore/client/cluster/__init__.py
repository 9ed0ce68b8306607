"""What all parts of a client know of the cluster: how to reach it, who leads, what is where."""
