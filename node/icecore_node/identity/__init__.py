"""What all parts of one running node share: its ports, who it is, its peers, its lease."""
