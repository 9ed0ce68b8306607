"""State that all parts of one running node share: what its next heartbeat says, its lease, its
waiting readers."""
