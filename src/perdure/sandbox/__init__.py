"""State of the operating system that belongs to a thread: files, and commands over them."""

from perdure.model.sandbox import Change, Changes, Contact, Package, Ran, ServiceState
from perdure.sandbox._collecting import LayersCollected
from perdure.sandbox._commands import IsolatedSandbox
from perdure.sandbox._directory import DirectorySandbox, DirectorySandboxes
from perdure.sandbox._isolated import IsolatedSandboxes
from perdure.sandbox._keeping import Collection, Kept
from perdure.sandbox._made import Made
from perdure.sandbox._names import folder_name
from perdure.sandbox._network import Network
from perdure.sandbox._processes import Process
from perdure.sandbox._story import (
    Snapshot,
    ThreadFiles,
    check_root,
    check_thread,
    history_of,
    threads_in,
)
from perdure.sandbox._trees import Tree
from perdure.sandbox._trusted import TrustedSandbox, TrustedSandboxes
from perdure.sandbox._turns import Capabilities, Limits
from perdure.sandbox.export import (
    ExportCollection,
    ExportsCollected,
    Fetched,
    FolderObjects,
    ObjectStore,
    Taker,
    Tally,
    Verified,
    make_objects,
    tenants_of,
    verify,
)

__all__ = [
    "Capabilities",
    "Change",
    "Changes",
    "Collection",
    "Contact",
    "DirectorySandbox",
    "DirectorySandboxes",
    "ExportCollection",
    "ExportsCollected",
    "Fetched",
    "FolderObjects",
    "IsolatedSandbox",
    "IsolatedSandboxes",
    "Kept",
    "LayersCollected",
    "Limits",
    "Made",
    "Network",
    "ObjectStore",
    "Package",
    "Process",
    "Ran",
    "ServiceState",
    "Snapshot",
    "Taker",
    "Tally",
    "ThreadFiles",
    "Tree",
    "TrustedSandbox",
    "TrustedSandboxes",
    "Verified",
    "check_root",
    "check_thread",
    "folder_name",
    "history_of",
    "make_objects",
    "tenants_of",
    "threads_in",
    "verify",
]
