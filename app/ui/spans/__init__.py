"""Which parts of a document were read."""
