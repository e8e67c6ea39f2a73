"""Runs what comes with a model (template, tokenizer, configuration) in a process with limits."""
