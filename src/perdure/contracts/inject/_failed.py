"""What a probe raises: an observation of a trial, which never leaves it."""


class ProbeFailed(Exception):  # it never leaves the room
    """The application gave no answer, or one that is none; the text says which."""
