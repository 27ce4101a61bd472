"""Shells, played way by way: which command ends up as the server, and who stands before it.

Nothing is executed. At `if` and `case` all ways that the known environment leaves open are
followed; when they end differently, the start is undecided. Ways that can't matter are skipped.

Size: a shell's state and the ways on which it changes are one machine.
"""

import re
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.contracts import limits
from perdure.contracts.deployment import _programs as programs
from perdure.contracts.deployment._commands import NEUTRAL, serves
from perdure.contracts.deployment._conditions import Known as Decided
from perdure.contracts.deployment._conditions import open_ways
from perdure.contracts.deployment._room import (
    Outcome,
    Room,
    Text,
    find_file,
    runs_own_command,
    unknown,
)
from perdure.contracts.deployment._shell import (
    Background,
    Chain,
    Choice,
    Function,
    Group,
    Loop,
    Part,
    Pipe,
    Simple,
    loops,
    read_shell,
    walk,
)
from perdure.contracts.deployment._traps import cuts_off
from perdure.contracts.deployment._variables import Variables
from perdure.contracts.deployment.facts import Process, Signal
from perdure.contracts.evidence import Confidence, Evidence, Known

Follow = Callable[..., Outcome]

_SHAPES = {"exec_server": "script_exec", "forwarded_server": "script_exec"}


class _Back(Struct, frozen=True, kw_only=True):
    """The end of a function's body: its caller's arguments count again."""

    arguments: tuple[str, ...]


class _Closed(Struct, frozen=True):
    """The end of a compound command: what follows is no part of it."""


Step = Part | _Back | _Closed

_MARKS = (_Back, _Closed)


class _State(Struct, kw_only=True):
    arguments: tuple[str, ...]
    variables: dict[str, str]
    functions: dict[str, Part]
    trap: Evidence | None = None
    handler: str = ""
    """What the trap executes."""
    is_strict: bool = False
    """`set -e`."""
    background: list[tuple[Process, Evidence, Outcome]] = field(default_factory=list)
    last: tuple[tuple[str, ...], Evidence] | None = None
    is_at_end: bool = False
    """Nothing at all comes after `last`."""
    nesting: int = 0
    """How many compound commands and functions it is in: there no shell puts a command in its own
    place (measured: bash 5.2)."""

    def copy(self) -> "_State":
        return _State(
            arguments=self.arguments,
            variables=dict(self.variables),
            functions=dict(self.functions),
            trap=self.trap,
            handler=self.handler,
            is_strict=self.is_strict,
            background=list(self.background),
            last=self.last,
            is_at_end=self.is_at_end,
            nesting=self.nesting,
        )


def play(
    text: Text,
    arguments: Sequence[str],
    here: Evidence,
    room: Room,
    *,
    depth: int,
    kind: str | None,
    is_script: bool,
    follow: Follow,
) -> Outcome:
    """Play a script or the text of `sh -c` as process 1.

    Args:
        text: What the shell reads.
        arguments: `$1` and on.
        here: Where the shell is started.
        room: What the container holds.
        depth: How many programs led here.
        kind: Which shell it is: `dash`, `bash`, `ash`; `None`: not known.
        is_script: A file, not `-c`: then no shell executes the last command in its own place.
        follow: What follows a command to its server.
    """
    read = read_shell(text.text, first_line=text.first_line)
    if read.has_error:
        question = f"What does the shell text near line {read.error_line} do?"
        return unknown(question, "unknown_script", here)
    player = _Player(text, room, depth, kind, follow, is_script=is_script)
    state = _State(arguments=tuple(arguments), variables={}, functions={})
    outcomes = player.play(list(read.body.parts), state)
    if player.is_over:
        return unknown(f"Which way does {text.file} take?", "unknown_script", here)
    return _joined(outcomes, player.choices, here, text)


def _joined(outcomes: list[Outcome], choices: list[str], here: Evidence, text: Text) -> Outcome:
    """Return what all ways agree on; the question that decides, if they don't."""
    if not outcomes:
        return unknown(f"What does {text.file} start?", "nothing_served", here)
    ordered = sorted(outcomes, key=lambda o: programs.rank(o.server))
    signals = {outcome.signal for outcome in outcomes}
    best = ordered[0]
    if len(signals) > 1:
        lost = next((o for o in ordered if o.signal is Signal.LOST), None)
        asked = next(iter(choices), None)
        question = best.question if best.signal is Signal.UNKNOWN and len(signals) == 1 else None
        question = (
            question or f"Which way does {text.file} take: what is {asked or 'its condition'}?"
        )
        evidence = (here, *(lost or best).evidence)
        return replace(
            best, signal=Signal.UNKNOWN, shape="several_ways", evidence=evidence, question=question
        )
    return best.after(here)


class _Player:
    def __init__(
        self,
        text: Text,
        room: Room,
        depth: int,
        kind: str | None,
        follow: Follow,
        *,
        is_script: bool,
    ) -> None:
        self._text = text
        self._room = room
        self._depth = depth
        self._kind = kind
        self._follow = follow
        self._is_script = is_script
        self._budget = limits.SHELL_BRANCHES_MAX
        self._calls = 0
        self.choices: list[str] = []

    @property
    def is_over(self) -> bool:
        return self._budget <= 0

    def play(  # noqa: C901, PLR0912  # one case for each kind of step
        self, steps: list[Step], state: _State
    ) -> list[Outcome]:
        """Play steps until one of them is the last that process 1 does, on every way."""
        while steps:
            step = steps.pop(0)
            match step:
                case _Back():
                    state.arguments = step.arguments
                    state.nesting -= 1
                case _Closed():
                    state.nesting -= 1
                case Chain():
                    steps[:0] = _in_order(step)
                case Group():
                    state.nesting += 1
                    body = step.body.parts if isinstance(step.body, Chain) else [step.body]
                    steps[:0] = [*body, _Closed()]
                case Function():
                    state.functions[step.name] = step.body
                case Background():
                    self._background(step, state)
                case Loop():
                    ended = self._loop(step, state)
                    if ended is not None:
                        return [ended]
                case Choice():
                    self._ask(step, state)
                    if self._matters(step, state):
                        return self._choose(step, steps, state)
                    self._note(step, state)
                case Pipe():
                    ended = self._pipe(step, state)
                    if ended is not None:
                        return [ended]
                case Simple():
                    outcome = self._simple(step, steps, state)
                    if outcome is not None:
                        return outcome
        return self._end(state)

    # -------------------------------------------------------------------------- single commands

    def _words(self, simple: Simple, state: _State) -> tuple[str, ...]:
        words: list[str] = []
        for word in simple.words:
            if word in {"$@", "${@}", "$*", '"$@"'}:
                words += state.arguments
            elif "$" in word:
                words.append(self._expanded(word, state))
            else:
                words.append(word)
        return tuple(words)

    def _expanded(self, word: str, state: _State) -> str:
        numbered = {f"A{number}": argument for number, argument in enumerate(state.arguments, 1)}
        text = re.sub(r"\$(\d)|\$\{(\d)([}:\-])", _as_name, word)
        given = {
            name: Known(value=value) for name, value in {**state.variables, **numbered}.items()
        }
        for name, variable in self._room.environment.items():
            given.setdefault(name, variable.known)
        here = self._text.at(1, "")
        known = Variables(assume={}, given=given).replace(text, here, is_compose=False)
        return known.value if known.value is not None else word

    def _simple(self, simple: Simple, steps: list[Step], state: _State) -> list[Outcome] | None:
        for name, value in simple.assigned:
            state.variables[name] = self._expanded(value, state)
        words = self._words(simple, state)
        if not words:
            return None
        here = self._text.at(simple.line, " ".join(words)[:120])
        name = programs.name_of(words[0])
        if name in state.functions and self._calls < limits.SHELL_BRANCHES_MAX:
            self._calls += 1
            steps[:0] = [state.functions[name], _Back(arguments=state.arguments)]
            state.nesting += 1
            state.arguments = words[1:]
            return None
        if name == "exec":
            return self._exec(words, here, state) if len(words) > 1 else None
        return self._builtin(name, words, here, steps, state)

    def _exec(self, words: tuple[str, ...], here: Evidence, state: _State) -> list[Outcome]:
        note = replace(here, note=f"exec puts {' '.join(words[1:])[:80]} in the shell's place")
        inner = words[1:]
        if inner[:1] == ("-a",):
            inner = inner[2:]
        outcome = self._follow(inner, note, self._room, depth=self._depth + 1)
        shape = _SHAPES.get(outcome.shape, outcome.shape)
        return [self._with_background(replace(outcome, shape=shape), state)]

    def _builtin(
        self,
        name: str,
        words: tuple[str, ...],
        here: Evidence,
        steps: list[Step],
        state: _State,
    ) -> list[Outcome] | None:
        if name == "exit":
            return self._end(state) if state.last is not None and words[1:] in {(), ("$?",)} else []
        if name in {"trap", "set"}:
            self._prepare(name, words, here, state)
            return None
        if name == "shift":
            state.arguments = state.arguments[1:]
            return None
        if name in {"export", "declare", "readonly", "local", "typeset"}:
            for word in words[1:]:
                key, equals, value = word.partition("=")
                if equals:
                    state.variables[key] = value
            return None
        if name == "wait" and state.background:
            return [self._wait(words, here, steps, state)]
        if name in {"sleep", "tail"} and re.search(
            r"infinity|-f\b|-F\b|/dev/null", " ".join(words)
        ):
            return [self._waiting(words, here, state)] if state.background else None
        return self._command(name, words, here, steps, state)

    @staticmethod
    def _prepare(name: str, words: tuple[str, ...], here: Evidence, state: _State) -> None:
        """Remember what `trap` and `set` say of what comes later."""
        if name == "trap":
            is_term = any(w.upper().removeprefix("SIG") in {"TERM", "15"} for w in words[2:])
            if is_term and words[1] not in {"", "-"}:
                state.trap, state.handler = here, words[1]
            return
        options = [word[1:] for word in words[1:] if word.startswith("-")]
        if "errexit" in words or any("e" in option for option in options):
            state.is_strict = True

    def _wait(
        self, words: tuple[str, ...], here: Evidence, steps: list[Step], state: _State
    ) -> Outcome:
        is_caught = steps[:1] == [Simple(words=("true",), line=0)]
        later = [step for step in steps if not isinstance(step, _MARKS)]
        ends_on_failure = state.is_strict and not is_caught
        outcome = self._waiting(words, here, state)
        if state.trap is None or not cuts_off(
            state.handler, state.functions, later, ends_on_failure=ends_on_failure
        ):
            return outcome
        note = "the script sends SIGTERM to its children and ends without waiting for them"
        told = tuple(
            replace(e, note=note) if _is_at(e, state.trap) else e for e in outcome.evidence
        )
        return replace(
            outcome,
            signal=Signal.LOST,
            shape="script_trap_no_wait",
            evidence=told,
            question=None,
        )

    def _command(
        self,
        name: str,
        words: tuple[str, ...],
        here: Evidence,
        steps: list[Step],
        state: _State,
    ) -> list[Outcome] | None:
        if self._notes_wait(words, here):
            return None
        if programs.migrates(words) and not serves(words) and name not in {"echo", "printf"}:
            self._room.migrations.append(here)
            return None
        if name in NEUTRAL and not serves(words) and not runs_own_command(words, self._room):
            return None
        is_last = not any(self._is_relevant(step, state) for step in steps)
        if is_last:
            state.last = (words, here)
            state.is_at_end = not any(not isinstance(step, _MARKS) for step in steps)
            return self._end(state)
        is_step = name not in programs.HANDLING and any(_executes(step) for step in steps)
        if (
            serves(words)
            and programs.name_of(words[0]) not in {"python", "uv", "poetry"}
            and not is_step
        ):
            return [self._child(words, here, state, is_tail=False)]
        state.last = (words, here)
        return None

    # -------------------------------------------------------------------------- what ends a way

    def _end(self, state: _State) -> list[Outcome]:
        if state.last is None:
            if state.background:
                here = state.background[-1][1]
                return [self._waiting(("(end)",), here, state)]
            return []
        words, here = state.last
        return [self._child(words, here, state, is_tail=state.is_at_end)]

    def _child(
        self, words: tuple[str, ...], here: Evidence, state: _State, *, is_tail: bool
    ) -> Outcome:
        """Return the outcome of a foreground command that no `exec` stands before."""
        inner = self._follow(words, here, self._room, depth=self._depth + 1, is_first=False)
        kind = self._kind or "the image's shell"
        is_replaced = self._kind == "bash" and not self._is_script and is_tail and not state.trap
        is_tail = is_tail and not state.nesting
        if is_replaced and is_tail:
            note = "bash executes the last command of -c in its own place"
            outcome = self._follow(words, here, self._room, depth=self._depth + 1)
            # What becomes of the signal in a program of Python, its code says.
            is_python = outcome.shape.startswith("python_")
            shape = outcome.shape if is_python else "shell_bash_last"
            shaped = replace(outcome, shape=shape).after(replace(here, note=note))
            return self._with_background(shaped, state)
        if self._kind in {None, "ash"} and not self._is_script and is_tail:
            what = f"the {self._kind}" if self._kind else "/bin/sh"
            question = f"Does {what} of the base image execute the last command in its own place?"
            return unknown(question, "shell_unknown", here, server=inner.server)
        if inner.server is not None and not programs.is_server(inner.server):
            name = inner.server.program
            question = f"Is {name!r} a server? The shell before it hands no SIGTERM on to it"
            return unknown(question, "unknown_child", here, server=inner.server)
        shape = "script_no_exec" if self._is_script else f"shell_{self._kind or 'any'}"
        note = f"{kind} stays process 1 and gets SIGTERM; this command is its child and does not"
        lost = Outcome(
            signal=Signal.LOST,
            shape=shape,
            server=inner.server,
            evidence=(replace(here, note=note), *inner.evidence[1:]),
            confidence=Confidence.PROVED if self._kind else Confidence.INFERRED,
        )
        return self._with_background(lost, state)

    def _waiting(self, words: tuple[str, ...], here: Evidence, state: _State) -> Outcome:
        """Return the outcome of a shell that waits for servers in the background."""
        process, place, inner = min(state.background, key=lambda b: programs.rank(b[0]))
        is_watched = words[0] == "wait" and (len(words) > 1 or len(state.background) == 1)
        unwatched = () if is_watched else (place, here)
        if state.trap is not None:
            note = "the script hands SIGTERM on to its children and waits for them"
            return Outcome(
                signal=inner.signal if inner.signal is not Signal.LOST else Signal.UNKNOWN,
                shape="script_trap",
                server=process,
                evidence=(place, replace(state.trap, note=note), here),
                question=inner.question,
                unwatched=unwatched,
            )
        note = "it runs in the background of a shell that gets SIGTERM and does not hand it on"
        return Outcome(
            signal=Signal.LOST,
            shape="script_background",
            server=process,
            evidence=(replace(place, note=note), here),
            unwatched=unwatched,
        )

    def _with_background(self, outcome: Outcome, state: _State) -> Outcome:
        """Return what is true if the server is one of those in the background."""
        if not state.background:
            return outcome
        process, place, _ = min(state.background, key=lambda b: programs.rank(b[0]))
        if programs.rank(process) >= programs.rank(outcome.server):
            self._room.beside += [each[1] for each in state.background if self._goes_on(each[0])]
            return outcome
        note = "the server runs in the background, beside process 1, which alone gets SIGTERM"
        at = replace(place, note=note)
        return replace(
            outcome,
            signal=Signal.LOST,
            shape="background_server",
            server=process,
            evidence=(at, *outcome.evidence),
            question=None,
            unwatched=(place, *outcome.evidence[:1]),
        )

    def _goes_on(self, process: Process) -> bool:
        """Whether a process in the background is one that agents need, for as long as they run."""
        if process.program != "python":
            return programs.rank(process) < programs.RANK_OF_OTHERS
        path = (process.target or "").replace(".", "/") + ".py"
        found = find_file(path if process.is_module else process.target or "", self._room)
        text = self._room.project.read(found) if found is not None else None
        return text is not None and programs.GOES_ON.search(text) is not None

    # -------------------------------------------------------------------------- compound commands

    def _background(self, step: Background, state: _State) -> None:
        for line, simple in _called(step.part, state.functions):
            words = self._words(simple, state)
            if not words or not serves(words):
                continue
            here = self._text.at(line, f"in the background: {' '.join(words)[:100]}")
            outcome = self._follow(words, here, self._room, depth=self._depth + 1, is_first=False)
            if outcome.server is not None:
                process = replace(outcome.server, is_background=True)
                state.background.append((process, here, outcome))

    def _notes_wait(self, words: tuple[str, ...], here: Evidence) -> bool:
        """Remember a command that waits; its text can be a loop of its own, as of `bash -c`."""
        line = " ".join(words)
        tried = programs.tries(line)
        is_said = words[0] in {"echo", "printf"}
        if is_said or serves(words) or not (tried or programs.waits(line)):
            return False
        self._room.waits.append(replace(here, note=tried[:120]) if tried else here)
        return True

    def _notes_loop(self, loop: Loop) -> bool:
        """Remember a loop that waits, and the migrations that it repeats."""
        tried = programs.tries(loop.text)
        if tried is None and not programs.waits(loop.text):
            return False
        said = tried if tried is not None else loop.text.split("\n", 1)[0]
        self._room.waits.append(self._text.at(loop.line, said[:120]))
        for simple in walk(loop):
            is_probe = simple.words[:1] == ("psql",)
            if simple.words and programs.migrates(simple.words) and not is_probe:
                self._room.migrations.append(self._text.at(simple.line, "a migration, repeated"))
        return True

    def _loop(self, loop: Loop, state: _State) -> Outcome | None:
        here = self._text.at(loop.line, loop.text.split("\n", 1)[0][:100])
        for simple in walk(loop):
            words = self._words(simple, state)
            if words and serves(words) and not programs.waits(loop.text):
                at = self._text.at(simple.line, " ".join(words)[:120])
                return self._child(words, at, state, is_tail=False)
        if (
            not self._notes_loop(loop)
            and re.search(r"\bwhile\s+(true|:|sleep)", loop.text)
            and state.background
        ):
            return self._waiting(("while",), here, state)
        return None

    def _pipe(self, pipe: Pipe, state: _State) -> Outcome | None:
        for part in pipe.parts:
            for simple in walk(part):
                words = self._words(simple, state)
                if words and serves(words):
                    here = self._text.at(simple.line, " ".join(words)[:120])
                    return self._child(words, here, state, is_tail=False)
                if words:
                    self._notes_wait(words, self._text.at(simple.line, " ".join(words)[:120]))
        return None

    def _note(self, part: Part, state: _State) -> None:
        """Remember migrations and waits beneath a part that is not followed."""
        noted = {
            id(simple) for loop in loops(part) if self._notes_loop(loop) for simple in walk(loop)
        }
        for simple in walk(part):
            words = self._words(simple, state)
            here = self._text.at(simple.line, " ".join(words)[:120])
            if not words or id(simple) in noted or self._notes_wait(words, here):
                continue
            if programs.migrates(words) and words[0] not in {"echo", "printf"}:
                self._room.migrations.append(here)

    def _known(self, state: _State) -> Decided:
        return Decided(arguments=state.arguments, expand=lambda word: self._expanded(word, state))

    def _ask(self, choice: Choice, state: _State) -> None:
        """Remember what the condition of an `if` waits for, itself or by a function."""
        if choice.word is not None:
            return
        for line, text in ((choice.line, c) for names, _ in choice.ways for c in names):
            here = self._text.at(line, text.split("\n", 1)[0][:120])
            tried = programs.tries(text)
            if tried is not None:
                self._room.waits.append(replace(here, note=tried[:120]))
            for name in re.findall(r"[\w-]+", text):
                body = state.functions.get(name)
                for loop in loops(body) if body is not None else ():
                    self._notes_loop(loop)

    def _choose(self, choice: Choice, steps: list[Step], state: _State) -> list[Outcome]:
        ways = open_ways(choice, self._known(state))
        self._budget -= len(ways)
        if self._budget <= 0:
            return []
        if len(ways) > 1 and choice.word is not None:
            self.choices.append(choice.word)
        elif len(ways) > 1:
            self.choices += list(choice.ways[0][0][:1])
        outcomes: list[Outcome] = []
        for way in ways:
            inner: list[Step] = [way, _Closed()] if way is not None else []
            branch = state.copy()
            branch.nesting += 1 if way is not None else 0
            outcomes += self.play([*inner, *steps], branch)
        return outcomes

    # -------------------------------------------------------------------------- what matters

    def _matters(self, part: Part, state: _State) -> bool:
        """Whether ways through a part can end differently."""
        for simple in walk(part):
            if not simple.words:
                continue
            name = programs.name_of(simple.words[0])
            if name in {"exec", "trap", "wait"} or name in state.functions:
                return True
            if serves(self._words(simple, state)):
                return True
        return _has_background(part)

    def _is_relevant(self, step: Step, state: _State) -> bool:
        """Whether a later step can be what process 1 ends with."""
        if isinstance(step, _Back | _Closed | Function):
            return False
        for simple in walk(step):
            if not simple.words:
                continue
            name = programs.name_of(simple.words[0])
            if name in {"exec", "wait"} or name in state.functions:
                return True
            if name not in NEUTRAL or serves(self._words(simple, state)):
                return True
        return False


def _executes(step: Step) -> bool:
    """Whether a later step takes the shell's place, so that what stands before it has to end."""
    if isinstance(step, _Back | _Closed | Function):
        return False
    return any(simple.words[:1] == ("exec",) and len(simple.words) > 1 for simple in walk(step))


def _called(part: Part, functions: dict[str, Part]) -> list[tuple[int, Simple]]:
    """Return the commands of a part, each with its line; of a function those of its body."""
    found: list[tuple[int, Simple]] = []
    for simple in walk(part):
        body = functions.get(simple.words[0]) if simple.words else None
        inner = walk(body) if body is not None else [simple]
        found += [(simple.line, each) for each in inner]
    return found


def _is_at(evidence: Evidence, place: Evidence) -> bool:
    return (evidence.file, evidence.line) == (place.file, place.line)


def _in_order(chain: Chain) -> list[Step]:
    """Return the parts of a chain as they are met when all goes well: without what follows `||`."""
    parts: list[Step] = list(chain.parts[:1])
    for part, operator in zip(
        chain.parts[1:], chain.operators or [";"] * len(chain.parts), strict=False
    ):
        parts.append(part if operator != "||" else Simple(words=("true",), line=0))
    return parts


def _as_name(found: re.Match[str]) -> str:
    """Turn `$1` into a name that variables can have."""
    if found.group(1):
        return f"${{A{found.group(1)}}}"
    return f"${{A{found.group(2)}{found.group(3)}"


def _has_background(part: Part, depth: int = 0) -> bool:
    if depth > limits.SHELL_DEPTH_MAX:
        return True
    match part:
        case Background():
            return True
        case Chain() | Pipe():
            return any(_has_background(inner, depth + 1) for inner in part.parts)
        case Choice():
            return any(_has_background(inner, depth + 1) for _, inner in part.ways)
        case Loop() | Group() | Function():
            return _has_background(part.body, depth + 1)
        case _:
            return False
