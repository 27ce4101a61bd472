"""Find the graph that a FILE_OR_MODULE:graph names."""

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.errors import GraphInvalid
from perdure.graph import Graph

_FRAMES_MAX = 4


def load_target(spec: str) -> Any:
    """Return the Graph or plain async function that a target names.

    Args:
        spec: `path/to/file.py:graph` or `package.module:graph`.

    Raises:
        GraphInvalid: it is missing, or can't be imported; names what there is.
    """
    place, separator, attribute = spec.rpartition(":")
    if not separator or not place or not attribute:
        msg = f"{spec!r} names no graph: write path/to/file.py:graph or package.module:graph"
        raise GraphInvalid(msg, target=spec)
    is_file = place.endswith(".py") or os.sep in place
    module = _load_file(Path(place)) if is_file else _load_module(place)
    return _attribute(module, place, attribute)


def _attribute(module: ModuleType, place: str, attribute: str) -> Any:
    found = getattr(module, attribute, None)
    if isinstance(found, Graph) or inspect.isfunction(found):
        return found
    graphs = graphs_in(module)
    near = difflib.get_close_matches(attribute, graphs, n=1, cutoff=0.5)
    known = ", ".join(f"{place}:{name}" for name in graphs) or "none"
    what = f"is a {type(found).__name__}" if hasattr(module, attribute) else "is not there"
    meant = f"; did you mean {place}:{near[0]}?" if near else ""
    msg = (
        f"{place}:{attribute} {what}; a Graph or a plain async function is wanted. "
        f"Found there: {known}{meant}"
    )
    raise GraphInvalid(msg, target=f"{place}:{attribute}", found=graphs)


def graphs_in(module: ModuleType) -> list[str]:
    """Return the names of a module's graphs; where it has none, of its public async functions."""
    graphs = [name for name, value in vars(module).items() if isinstance(value, Graph)]
    return graphs or [
        name
        for name, value in vars(module).items()
        if inspect.iscoroutinefunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


# -- modules -------------------------------------------------------------------------------------


def _load_module(name: str) -> ModuleType:
    _put_first(Path.cwd())  # as `python -m` does, and a console script does not
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            msg = f"there is no module {name!r} (looked in {Path.cwd()} and the installed packages)"
            raise GraphInvalid(msg, target=name) from error
        raise _broken(name, error) from error
    except Exception as error:  # whatever the user's module raises, told with its place
        raise _broken(name, error) from error


def _load_file(path: Path) -> ModuleType:
    """Load a file, once, as the module that it is in its package, or under its own name."""
    if not path.is_file():
        near = sorted(str(other) for other in path.parent.glob("*.py"))[:10]
        there = f"; there are: {', '.join(near)}" if near else ""
        msg = f"there is no file {str(path)!r}{there}"
        raise GraphInvalid(msg, target=str(path))
    resolved = path.resolve()
    root, name = _module_name(resolved)
    known = sys.modules.get(name)
    if known is not None and _is_from(known, resolved):
        return known
    if known is not None or name in sys.stdlib_module_names:
        name = f"perdure_file_{resolved.stem}"
    _put_first(root)
    return _execute(name, resolved)


def _module_name(path: Path) -> tuple[Path, str]:
    """Return the folder to import from, and a file's dotted name: as deep as there are packages."""
    parts = [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _execute(name: str, path: Path) -> ModuleType:
    try:
        if "." in name:
            return importlib.import_module(name)
        return _import_file(name, path)
    except GraphInvalid:
        raise  # a graph in it is wrong, and says where
    except Exception as error:  # whatever the user's file raises, told with its place
        raise _broken(str(path), error) from error


def _import_file(name: str, path: Path) -> ModuleType:
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    module = importlib.util.module_from_spec(spec or ModuleSpec(name, loader))
    sys.modules[name] = module  # annotations of dataclasses are looked up here
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_from(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def _put_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _broken(name: str, error: Exception) -> GraphInvalid:
    """Return the error for a module that raised, with the last frames of its trace."""
    msg = f"{name!r} can't be imported: {type(error).__name__}: {error}"
    broken = GraphInvalid(msg, target=name)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename
    ]
    return broken.note("".join(traceback.format_list(frames[-_FRAMES_MAX:])).rstrip())
