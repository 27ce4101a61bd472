"""Drives the core over a store: workers, recovery, timers, effects."""
