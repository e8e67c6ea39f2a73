"""A target that is spread over several machines."""
