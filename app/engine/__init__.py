import logging

# Without a handler, Python would write warnings on the screen.
logging.getLogger(__name__).addHandler(logging.NullHandler())
