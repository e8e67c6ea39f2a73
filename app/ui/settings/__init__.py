"""F2: what can be set, built from the settings themselves."""
