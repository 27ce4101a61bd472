"""A runtime on each store, for tests of the engine."""

import pytest

from perdure import Runtime


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """Return the URL of a fresh store of each kind."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
async def open_runtime(url):
    """Return a function that opens a runtime with the given graphs; all are closed at the end."""
    opened = []

    async def open_one(*graphs, **options):
        runtime = Runtime.open(options.pop("url", url), graphs=graphs, **options)
        await runtime.__aenter__()
        opened.append(runtime)
        return runtime

    yield open_one
    for runtime in opened:
        await runtime.close(window_s=1.0)
