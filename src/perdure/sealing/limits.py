"""Limits of encryption, each with its unit and reason."""

SCOPES_MAX = 10_000
"""Data keys that are remembered unwrapped, by scope; who needs another one reads it again."""

PLACES_MAX = 50_000
"""Runs whose tenant and thread are remembered."""

PROVIDER_KEYS_MAX = 1_000
"""Keys of one provider: far more than anybody keeps while rotating."""

KEY_FILE_BYTES_MAX = 256 * 1024
"""Largest file or variable of keys, in bytes: so many keys with their ids."""

WRAPPED_BYTES_MAX = 16 * 1024
"""Largest wrapped data key that is read, in bytes: key services add a few hundred to it."""

ROTATED_AT_ONCE = 500
"""Data keys that a rotation reads at once."""

ROTATION_PASSES_MAX = 100
"""Passes over all data keys in one rotation: more are only needed against another rotation."""

TOLD_MAX = 10_000
"""Rows that can't be unsealed and whose log line is remembered, so that it is not repeated."""

RENEWALS_MAX = 5
"""How often a start is sealed anew whose thread got another data key meanwhile."""

BATCH_SEALS = 15
"""Messages that share the first half of a nonce: a step with its effects has four."""

WORKER_SEEN_US = 60_000_000
"""A worker that was seen this long ago, in microseconds, counts as alive: four leases."""
