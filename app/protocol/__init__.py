"""The plain records that engine, store and interfaces exchange. Imports nothing of ours."""
