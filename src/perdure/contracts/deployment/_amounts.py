"""Numbers, shares and words of Kubernetes objects."""

import math
import re
from collections.abc import Mapping

from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts.deployment._yaml import Node
from perdure.contracts.deployment.facts import Variable
from perdure.contracts.evidence import Confidence, Evidence, Known
from perdure.contracts.numbers import whole


def number(node: Node | None) -> int | None:
    """Return the number that a scalar is; `None`: it is none."""
    text = node.scalar if node is not None else None
    return whole(text)


def mode_of(node: Node | None) -> str | None:
    """Return the access mode that counts: of several, the widest."""
    modes = [
        item.text for item in (node.items if node is not None else []) if item.text is not None
    ]
    return "ReadWriteMany" if "ReadWriteMany" in modes else next(iter(modes), None)


def share(
    rolling: Node | None, key: str, default: str, replicas: Known[int], here: Evidence
) -> Known[int]:
    """Return a number of pods; of a percentage as Kubernetes rounds it: missing down, more up."""
    node = rolling.get(key) if rolling is not None else None
    text = node.scalar if node is not None and node.scalar is not None else default
    at = here
    if node is not None and rolling is not None:
        at = rolling.place_of(key, f"{key}: {text}")
    if found := re.fullmatch(r"(\d{1,3})%", text):
        if replicas.value is None:
            return Known(value=None, evidence=(at,), question=replicas.question)
        exact = replicas.value * int(found.group(1)) / 100
        value = math.ceil(exact) if key == "maxSurge" else math.floor(exact)
        return Known(value=value, evidence=(at,), is_default=node is None)
    count = whole(text)
    if count is not None:
        return Known(value=count, evidence=(at,), is_default=node is None)
    return Known(value=None, evidence=(at,), question=f"What is {key}?")


def filled(text: str, environment: Mapping[str, Variable]) -> str:
    """Replace `$(NAME)` as Kubernetes does; unknown ones stay, and those beyond what is read."""
    left = limits.SCRIPT_BYTES_MAX

    def value(found: re.Match[str]) -> str:
        nonlocal left
        variable = environment.get(found.group(1))
        known = variable.known.value if variable is not None else None
        if known is None or len(known) > left:
            return found.group()
        left -= len(known)
        return known

    return re.sub(r"\$\(([A-Za-z_][\w.\-]*)\)", value, text)


def pre_stop_of(container: Node, place: Evidence) -> Known[float]:
    """Return how many seconds of the grace a container's preStop hook takes."""
    node = container.at("lifecycle", "preStop")
    if node is None:
        return Known(value=0.0, evidence=(place,), is_default=True)
    here = node.evidence("preStop takes its time out of the grace period")
    seconds = number(node.at("sleep", "seconds"))
    if seconds is not None:
        return Known(value=float(seconds), evidence=(here,))
    command = node.at("exec", "command")
    words = " ".join(item.scalar or "" for item in (command.items if command is not None else []))
    slept = re.findall(r"sleep\s+(\d{1,9}(?:\.\d{1,9})?)([smh]?)", words)
    if slept:
        units = {"": 1, "s": 1, "m": 60, "h": 3600}
        total = sum(float(each) * units[unit] for each, unit in slept)
        return Known(value=total, evidence=(replace(here, note=f"preStop sleeps {total:g} s"),))
    if words and not re.search(r"curl|wget|python|\bwait\b|while|until", words):
        return Known(value=0.0, evidence=(here,), confidence=Confidence.INFERRED)
    return Known(value=None, evidence=(here,), question="How long does the preStop hook take?")
