"""State of the operating system that belongs to a thread: files, as yet without isolation."""

from perdure.sandbox._directory import DirectorySandbox, DirectorySandboxes

__all__ = ["DirectorySandbox", "DirectorySandboxes"]
