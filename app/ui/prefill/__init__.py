"""How a turn is read: phases, importance, selected spans, stats."""
