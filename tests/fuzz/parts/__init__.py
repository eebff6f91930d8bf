"""One file a part: what is mutated, and what may come of it."""
