"""A target that is sharded over several processes."""
