"""F2 and F3: settings, built from their own types and texts."""
