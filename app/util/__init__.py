"""Helpers that every package may use. They import no other package of the app."""
