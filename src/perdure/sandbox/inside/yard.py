"""Where CRIU works on the way back: it can change nothing of the host by any path it follows.

CRIU makes files without a name by their paths, before the sandbox's root is its root: a link that
the sandbox has put there would lead it into the host. So in the namespace of mounts that it is
called in every mount of the host is read-only, and it has a file system in memory to write to.
"""

import os

from . import syscalls as sys_

_YARD = "/tmp"  # noqa: S108  # a file system of its own is put there: CRIU makes its folders in it


def closed(new_root: str, program: str) -> tuple[str, str]:
    """Close the host to writes; return where the root is then, and an empty folder to write to.

    Called in a mount namespace of its own.

    Args:
        new_root: built by `root.build`; its own mounts stay as they are.
        program: CRIU, which is to be seen still.
    """
    tools = os.path.dirname(program)
    root = sys_.open_tree(new_root, is_recursive=True)
    shown = sys_.open_tree(tools) if tools.startswith(f"{_YARD}/") else -1
    sys_.detach(new_root)
    for path, clear in (("/", 0), ("/proc", sys_.MOUNT_ATTR_RDONLY)):
        host = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if clear:
            sys_.set_mount(host, 0, clear=clear)
        else:
            sys_.set_mount(host, sys_.MOUNT_ATTR_RDONLY, is_recursive=True)
        os.close(host)
    sys_.mount("tmpfs", _YARD, "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=0700,size=64m")
    at, work = f"{_YARD}/root", f"{_YARD}/work"
    os.mkdir(at, 0o700)
    os.mkdir(work, 0o700)
    sys_.attach(root, at)
    os.close(root)
    if shown >= 0:
        os.makedirs(tools, 0o700)
        sys_.set_mount(shown, sys_.MOUNT_ATTR_RDONLY)
        sys_.attach(shown, tools)
        os.close(shown)
    return at, work
