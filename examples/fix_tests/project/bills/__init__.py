"""Shared bills: read them, split them, say who owes what."""
