"""Runs the code that comes with a model (chat template, tokenizer) in a process with limits."""
