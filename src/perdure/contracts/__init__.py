"""Operational contracts between an agent and its container platform, checked and proved."""
