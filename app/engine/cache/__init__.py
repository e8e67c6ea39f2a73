"""Keys and values that know their positions, prefill into them, and their snapshots on disk."""
