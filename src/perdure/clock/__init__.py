"""The only door to time, chance, identifiers and (in tests) sudden death.

Everything above asks a `Services` for the time, for randomness, for new identifiers and for sleep,
so that the whole engine runs unchanged on a virtual clock. Times are integer microseconds since
1970-01-01 UTC (`*_us`); durations given by people are float seconds (`*_s`).
"""

from perdure.clock._api import Clock, Entropy, IdSource, Probe, Rng, Services
from perdure.clock._system import (
    SystemClock,
    SystemIds,
    SystemRng,
    no_probe,
    spell_id,
    system_services,
)

__all__ = [
    "Clock",
    "Entropy",
    "IdSource",
    "Probe",
    "Rng",
    "Services",
    "SystemClock",
    "SystemIds",
    "SystemRng",
    "no_probe",
    "spell_id",
    "system_services",
]
