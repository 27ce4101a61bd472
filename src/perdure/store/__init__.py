"""Where runs live: one protocol (`api`) and the backends that keep it, found by URL scheme."""

from perdure.store._registry import make_store, shown_url

__all__ = ["make_store", "shown_url"]
