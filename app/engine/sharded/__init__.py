"""A target whose layers or heads are spread over processes."""
