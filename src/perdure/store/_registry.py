"""Find a store by the scheme of its URL; third-party ones by entry points `perdure.stores`."""

import re
from importlib import import_module
from typing import Any

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
        url: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://user@host/database`,
            `memory://`, or the scheme of an installed plug-in.
        services: time, chance and identity, handed to the store.

    Raises:
        SettingInvalid: it is no URL, its scheme is unknown (names the known ones), or its driver is
            not installed (says how). No password is shown.
    """
    scheme, separator, _rest = url.partition("://")
    if separator and scheme in BUILT_IN:
        built_in: Store = _load(scheme)(url, services)
        return built_in
    from importlib.metadata import entry_points  # noqa: PLC0415  # 7 ms that `import perdure` saves

    plug_ins = {point.name: point for point in entry_points(group="perdure.stores")}
    if separator and scheme in plug_ins:
        plug_in: Store = plug_ins[scheme].load()(url, services)
        return plug_in
    shown = shown_url(url)
    known = ", ".join(f"{name}://" for name in sorted([*BUILT_IN, *plug_ins]))
    if separator:
        msg = f"{shown!r}: no store has the scheme {scheme!r}; known: {known}"
    else:
        msg = f"{shown!r} is no store URL; for a file of that name write 'sqlite:///{shown}'"
    raise SettingInvalid(msg, url=shown, known=known)


def _load(scheme: str) -> Any:
    module, name = BUILT_IN[scheme]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("perdure"):
            raise
        extra = module.rpartition(".")[2]
        msg = (
            f"{scheme}:// needs the package {error.name!r}, which is not installed: "
            f"pip install 'perdure[{extra}]'"
        )
        raise SettingInvalid(msg, scheme=scheme) from error


_SECRET = re.compile(
    r"(?<=://)([^/?#@:]*):[^?#]*(?=@)|(?<=[?&])(password|sslpassword|passfile)=[^&]*"
)


def shown_url(url: str) -> str:
    """Return a store URL as it may be shown and logged: with `***` for a password."""
    return _SECRET.sub(
        lambda found: f"{found[1]}:***" if found[2] is None else f"{found[2]}=***", url
    )
