"""Pictures of the app in all its states, the same every time.

A scene plays on the scripted engine and takes pictures on its way. `python -m tests.ui.pictures`
plays them all and puts the pictures where they are kept: into `kept/`, with which the tests compare
what the app draws now, and a few into `assets/screens/` for `docs/using.md`.
"""
