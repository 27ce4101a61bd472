"""Find a store by the scheme of its URL; third-party ones by entry points `perdure.stores`."""

from importlib import import_module

from perdure.clock import Services
from perdure.errors import SettingInvalid
from perdure.store.api import Store

BUILT_IN = {
    "memory": ("perdure.store.memory", "MemoryStore"),
    "postgres": ("perdure.store.postgres", "PostgresStore"),
    "postgresql": ("perdure.store.postgres", "PostgresStore"),
    "sqlite": ("perdure.store.sqlite", "SqliteStore"),
}


def make_store(url: str, services: Services) -> Store:
    """Return the unopened store that the URL names.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `memory://`, or the scheme of an
            installed plug-in.
        services: time, chance and identity, handed to the store.

    Raises:
        SettingInvalid: it is no URL, or its scheme is unknown; names the ones that are known.
    """
    scheme, separator, _rest = url.partition("://")
    if separator and scheme in BUILT_IN:
        module, name = BUILT_IN[scheme]
        built_in: Store = getattr(import_module(module), name)(url, services)
        return built_in
    from importlib.metadata import entry_points  # noqa: PLC0415  # 7 ms that `import perdure` saves

    plug_ins = {point.name: point for point in entry_points(group="perdure.stores")}
    if separator and scheme in plug_ins:
        plug_in: Store = plug_ins[scheme].load()(url, services)
        return plug_in
    known = ", ".join(f"{name}://" for name in sorted([*BUILT_IN, *plug_ins]))
    if separator:
        msg = f"{url!r}: no store has the scheme {scheme!r}; known: {known}"
    else:
        msg = f"{url!r} is no store URL; for a file of that name write 'sqlite:///{url}'"
    raise SettingInvalid(msg, url=url, known=known)
