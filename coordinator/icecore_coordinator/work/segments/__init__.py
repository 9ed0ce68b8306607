"""The life of a segment: opened as a tail, rolled, sealed, and its seal checked."""
