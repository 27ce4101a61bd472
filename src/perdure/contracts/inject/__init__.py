"""Proves a contract by breaking real containers or processes."""

from perdure.contracts.inject._folder import Wanted, engine_named, prove_folder
from perdure.contracts.inject._outcome import Event
from perdure.contracts.inject.prove import Asked, Proof, Proven, Repetition, prove

__all__ = [
    "Asked",
    "Event",
    "Proof",
    "Proven",
    "Repetition",
    "Wanted",
    "engine_named",
    "prove",
    "prove_folder",
]
