"""State of the operating system that belongs to a thread: files and processes."""
