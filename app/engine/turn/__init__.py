"""One turn: plan, read, decode, recall, and the cost model."""
