"""Where what came with a model, and could harm us, is run: in a process that can be stopped."""
