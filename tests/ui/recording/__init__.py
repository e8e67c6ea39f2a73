"""A recording of one real run, for the README: the app on the demo pair, its real engine at
work. Nothing is sped up or omitted: every frame stays as long as it stayed on the screen.

`python -m tests.ui.recording` takes it again: it runs the app headless, types as a user would, and
looks at the screen ten times a second.
"""
