"""Runs the code that comes with a model (chat template, tokenizer, configuration) in a process with limits."""
