"""Plain records that engine, store and interfaces exchange. Imports no other package of the app."""
