"""Snapshots that outlive their host: exported by content, sealed, and imported elsewhere."""

from perdure.sandbox.export._base import Base
from perdure.sandbox.export._collecting import ExportCollection, ExportsCollected, Taker
from perdure.sandbox.export._exports import Exports, Fetched, Tenant
from perdure.sandbox.export._objects import FolderObjects, ObjectStore, make_objects
from perdure.sandbox.export._pieces import Tally
from perdure.sandbox.export._reading import driver_of
from perdure.sandbox.export._verifying import Verified, tenants_of, verify

__all__ = [
    "Base",
    "ExportCollection",
    "Exports",
    "ExportsCollected",
    "Fetched",
    "FolderObjects",
    "ObjectStore",
    "Taker",
    "Tally",
    "Tenant",
    "Verified",
    "driver_of",
    "make_objects",
    "tenants_of",
    "verify",
]
