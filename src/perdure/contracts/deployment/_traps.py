"""Whether a shell that hands SIGTERM on lets its children finish: measured with bash and dash.

A trapped signal ends `wait` at once. The children have seen SIGTERM, and what they do about it
goes on only while the shell lives: while its handler waits, or a later `wait` does.
"""

from collections.abc import Iterable, Mapping

from perdure.contracts.deployment._shell import Part, Simple, read_shell, walk


def cuts_off(
    handler: str,
    functions: Mapping[str, Part],
    later: Iterable[Part],
    *,
    ends_on_failure: bool,
) -> bool:
    """Whether the shell kills its children and ends before they have finished.

    Args:
        handler: what the trap executes.
        functions: the script's functions, which the handler may call.
        later: what comes after the `wait` that the signal interrupts.
        ends_on_failure: `set -e` is in force where that `wait` returns with an error.
    """
    commands = _commands(handler, functions)
    names = {simple.words[0] for simple in commands if simple.words}
    if not names & {"kill", "pkill", "killall"} or "wait" in names:
        return False
    if "exit" in names or ends_on_failure:
        return True
    return not any(
        simple.words[:1] in {("wait",), ("exec",)} for part in later for simple in walk(part)
    )


def _commands(handler: str, functions: Mapping[str, Part]) -> list[Simple]:
    found = walk(read_shell(handler).body)
    called = {simple.words[0] for simple in found if simple.words} & set(functions)
    return found + [simple for name in sorted(called) for simple in walk(functions[name])]
