"""How a turn is being read: phases, importance, kept spans, figures."""
