"""State of the operating system that belongs to a thread: files, and commands over them."""

from perdure.sandbox._directory import DirectorySandbox, DirectorySandboxes
from perdure.sandbox._isolated import (
    Capabilities,
    IsolatedSandbox,
    IsolatedSandboxes,
    Limits,
    Ran,
)

__all__ = [
    "Capabilities",
    "DirectorySandbox",
    "DirectorySandboxes",
    "IsolatedSandbox",
    "IsolatedSandboxes",
    "Limits",
    "Ran",
]
