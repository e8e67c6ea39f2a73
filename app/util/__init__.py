"""Leaves that every part of the app may use; they import nothing of ours."""
