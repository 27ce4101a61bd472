"""How much memory a piece of work takes of this process, whatever other tests took before."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_STATUS = Path("/proc/self/status")


@contextmanager
def memory_within(mb: int) -> Iterator[None]:
    """Fail if the block's peak lies more than `mb` (MB) over what is in use when it begins.

    Linux keeps the highest resident size of a process; writing 5 to `clear_refs` sets it back to
    the size of now (proc(5)). A system that refuses that can't tell: the test is skipped.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as refused:
        pytest.skip(f"the peak of memory can't be set back here: {refused}")
    before = _kb("VmRSS")
    yield
    grown = (_kb("VmHWM") - before) / 1024
    assert grown < mb, f"{grown:.0f} MB more than before, {mb} were allowed"


def _kb(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found, name
    return int(found[1])
