import logging

# Without a handler, Python would print warnings over the screen.
logging.getLogger(__name__).addHandler(logging.NullHandler())
