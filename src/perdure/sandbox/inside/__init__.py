"""The part of the sandbox that runs in processes of its own, with nothing but the standard library.

The launcher is started as `python -I -S -m inside` with this folder's parent as its whole path, so
that a process that forks sandboxes has loaded neither Perdure nor anything that a user installed.
Therefore these modules import only the standard library and, relatively, each other.
"""
