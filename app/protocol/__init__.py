"""The plain records that engine, sessions and interfaces exchange. Imports nothing of ours."""
