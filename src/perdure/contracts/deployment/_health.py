"""What a platform runs or asks to know that a container is healthy."""

from collections.abc import Callable

from perdure.contracts.deployment._yaml import Node, truth

WORDS_MAX = 64
"""Words of one test that are kept."""


def compose_test(check: Node | None, filled: Callable[[Node], str]) -> tuple[str, ...]:
    """Return the test of a Compose `healthcheck`, as `Service.health_test` says it.

    `filled` returns the text of a node with its variables replaced.
    """
    test = check.get("test") if check is not None else None
    if check is None or test is None or truth(check.text_at("disable")) is True:
        return ()
    if test.text is not None:
        return ("CMD-SHELL", filled(test))
    words = tuple(filled(item) for item in test.items[:WORDS_MAX])
    return words if words[:1] in (("CMD",), ("CMD-SHELL",)) and len(words) > 1 else ()


def probe_test(probe: Node | None, container: Node) -> tuple[str, ...]:
    """Return what a readiness probe of Kubernetes asks; a named port is looked up."""
    if probe is None:
        return ()
    command = probe.at("exec", "command")
    if command is not None and command.items:
        return ("CMD", *(item.text or "" for item in command.items[:WORDS_MAX]))
    for key, kind in (("httpGet", "HTTP"), ("tcpSocket", "TCP")):
        asked = probe.get(key)
        if asked is not None:
            port = _port(asked.text_at("port"), container)
            path = (asked.text_at("path") or "/",) if kind == "HTTP" else ()
            return (kind, port, *path) if port else ()
    return ()


def hook_of(hook: Node | None, container: Node) -> tuple[str, ...]:
    """Return what a preStop hook of Kubernetes does, as `Service.pre_stop` says it."""
    seconds = hook.text_at("sleep", "seconds") if hook is not None else None
    return ("SLEEP", seconds) if seconds else probe_test(hook, container)


def _port(named: str | None, container: Node) -> str | None:
    ports = container.get("ports")
    for item in ports.items if ports is not None else ():
        if item.text_at("name") == named:
            return item.text_at("containerPort")
    return named
