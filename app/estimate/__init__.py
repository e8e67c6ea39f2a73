"""What a turn will take before it runs: how it is read, seconds and bytes. Pure Python, so that the
screen predicts what the engine decides."""
