"""Runs parts of a model (chat template, tokenizer, configuration) in a process with limits."""
