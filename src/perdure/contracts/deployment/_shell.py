"""Shell text as a small tree: which commands, in which order, in the background or not.

The grammar is tree-sitter's; nothing is expanded or executed. Text that the grammar doesn't accept
has `has_error`, and rules must not conclude anything from it.
"""

import re
from functools import cache
from typing import Any

from msgspec import Struct

from perdure.contracts import limits


class Simple(Struct, frozen=True, kw_only=True):
    """A command: its words as written, quotes removed where nothing else depends on them."""

    words: tuple[str, ...]
    line: int
    assigned: tuple[tuple[str, str], ...] = ()


class Chain(Struct, frozen=True, kw_only=True):
    """Commands one after the other: `;`, newlines, `&&`, `||`."""

    parts: tuple["Part", ...]
    operators: tuple[str, ...] = ()
    """Between the parts: `&&`, `||`; empty for `;`."""


class Background(Struct, frozen=True, kw_only=True):
    """`part &`."""

    part: "Part"
    line: int


class Pipe(Struct, frozen=True, kw_only=True):
    """`a | b`."""

    parts: tuple["Part", ...]
    line: int


class Choice(Struct, frozen=True, kw_only=True):
    """`if` and `case`: one of the ways, or none of them if there is no `else`."""

    word: str | None
    """What a `case` looks at; `None` for `if`."""
    ways: tuple[tuple[tuple[str, ...], "Part"], ...]
    """Patterns (`case`) or the condition's text (`if`), and what is done."""
    has_else: bool
    line: int


class Loop(Struct, frozen=True, kw_only=True):
    """`while`, `until`, `for`."""

    condition: "Part | None"
    body: "Part"
    line: int
    text: str


class Group(Struct, frozen=True, kw_only=True):
    """`( ... )`, or `{ ... }` with `is_subshell` false."""

    body: "Part"
    is_subshell: bool


class Function(Struct, frozen=True, kw_only=True):
    """A function; nothing happens until it is called."""

    name: str
    body: "Part"


Part = Simple | Chain | Background | Pipe | Choice | Loop | Group | Function


class Script(Struct, frozen=True, kw_only=True):
    """A script's tree."""

    body: Chain
    has_error: bool
    error_line: int | None = None


@cache
def _parser() -> Any:
    import tree_sitter  # noqa: PLC0415  # only checks that meet a shell pay for it
    import tree_sitter_bash  # noqa: PLC0415

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def read_shell(text: str, *, first_line: int = 1) -> Script:
    """Return the tree of a script; `first_line` is the line of its first line in its file."""
    if len(text) > limits.SCRIPT_BYTES_MAX:
        return Script(body=Chain(parts=()), has_error=True, error_line=first_line)
    tree = _parser().parse(text.replace("\r\n", "\n").encode("utf-8", "replace"))
    reading = _Reading(first_line)
    body = reading.chain(tree.root_node, 0)
    error = _first_error(tree.root_node)
    return Script(
        body=body,
        has_error=error is not None or reading.is_too_deep,
        error_line=None if error is None else error.start_point.row + first_line,
    )


def _first_error(node: Any) -> Any | None:
    """Return the first node that the grammar rejects."""
    if not node.has_error:
        return None
    stack = [node]
    while stack:
        here = stack.pop()
        if here.is_error or here.is_missing:
            return here
        stack += [child for child in reversed(here.children) if child.has_error or child.is_error]
    return None


def _text(node: Any) -> str:
    return str(node.text.decode("utf-8", "replace"))


def _flat(node: Any) -> list[Any]:
    """Return the commands of `a && b && c` and the signs between them: the grammar nests them."""
    rests: list[list[Any]] = []
    while node.type == "list" and node.children:
        rests.append(node.children[1:])
        node = node.children[0]
    return [node, *(child for rest in reversed(rests) for child in rest)]


class _Reading:
    def __init__(self, first_line: int) -> None:
        self._first = first_line
        self.is_too_deep = False

    def _line(self, node: Any) -> int:
        return int(node.start_point.row) + self._first

    def chain(self, node: Any, depth: int, skip: int = 0) -> Chain:
        """Read the statements of a node, in order."""
        parts: list[Part] = []
        for child in node.children[skip:]:
            if child.type == "&" and parts:
                parts[-1] = Background(part=parts[-1], line=self._line(child))
            elif child.is_named and child.type not in {"comment", "heredoc_body", "heredoc_end"}:
                part = self.part(child, depth + 1)
                if part is not None:
                    parts.append(part)
        return Chain(parts=tuple(parts))

    def part(  # noqa: C901, PLR0912  # one case for each kind of node
        self, node: Any, depth: int
    ) -> Part | None:
        if depth > limits.SHELL_DEPTH_MAX:
            self.is_too_deep = True
            return None
        match node.type:
            case "command" | "declaration_command" | "unset_command" | "test_command":
                return self._simple(node)
            case "variable_assignment" | "variable_assignments":
                return self._assignment(node)
            case "redirected_statement":
                body = node.child_by_field_name("body")
                inner = self.part(body, depth + 1) if body is not None else None
                return _with_text(inner, node) if isinstance(inner, Simple) else inner
            case "list":
                return self._list(node, depth)
            case "pipeline":
                named = [self.part(c, depth + 1) for c in node.children if c.is_named]
                return Pipe(parts=tuple(p for p in named if p is not None), line=self._line(node))
            case "if_statement":
                return self._if(node, depth)
            case "case_statement":
                return self._case(node, depth)
            case "while_statement" | "for_statement" | "c_style_for_statement":
                return self._loop(node, depth)
            case "subshell" | "compound_statement":
                body = self.chain(node, depth)
                return Group(body=body, is_subshell=node.type == "subshell")
            case "function_definition":
                name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
                inner = self.part(body, depth + 1) if body is not None else None
                return Function(name=_text(name), body=inner) if name and inner else None
            case "negated_command":
                negated = [self.part(c, depth + 1) for c in node.children if c.is_named]
                return negated[0] if negated else None
            case _:
                return None

    def _simple(self, node: Any) -> Simple | None:
        words: list[str] = []
        assigned: list[tuple[str, str]] = []
        if node.type in {"declaration_command", "unset_command", "test_command"}:
            return Simple(words=_plain_words(_text(node)), line=self._line(node))
        for child in node.children:
            if child.type == "variable_assignment":
                name, _, value = _text(child).partition("=")
                assigned.append((name, _bare(value)))
            elif child.type == "command_name" or child.is_named:
                if "redirect" not in child.type:
                    words.append(_bare(_text(child)))
            elif child.type not in {"<<<", "<", ">", "$"}:
                words.append(_text(child))
        return Simple(words=tuple(words), line=self._line(node), assigned=tuple(assigned))

    def _assignment(self, node: Any) -> Simple:
        children = [node] if node.type == "variable_assignment" else node.children
        pairs = [_text(c).partition("=") for c in children if c.type == "variable_assignment"]
        return Simple(
            words=(),
            line=self._line(node),
            assigned=tuple((name, _bare(value)) for name, _, value in pairs),
        )

    def _list(self, node: Any, depth: int) -> Chain:
        parts: list[Part] = []
        operators: list[str] = []
        for child in _flat(node):
            if child.type in {"&&", "||"}:
                operators.append(child.type)
            elif child.is_named:
                part = self.part(child, depth + 1)
                if isinstance(part, Chain) and part.operators:
                    parts += part.parts
                    operators[len(operators) :] = part.operators
                elif part is not None:
                    parts.append(part)
        if len(operators) != len(parts) - 1:
            operators = ["&&"] * (len(parts) - 1)
        return Chain(parts=tuple(parts), operators=tuple(operators))

    def _if(self, node: Any, depth: int) -> Choice:
        ways: list[tuple[tuple[str, ...], Part]] = []
        has_else = False
        condition: list[str] = []
        body: list[Part] = []
        is_body = False
        for child in node.children:
            if child.type == "then":
                is_body = True
            elif child.type in {"elif_clause", "else_clause"}:
                inner, text = self._clause(child, depth)
                has_else = has_else or child.type == "else_clause"
                ways.append(((text,) if text is not None else (), inner))
            elif child.type == "&" and body:
                body[-1] = Background(part=body[-1], line=self._line(child))
            elif child.is_named and child.type != "comment":
                if is_body:
                    part = self.part(child, depth + 1)
                    body += [part] if part is not None else []
                else:
                    condition.append(_text(child))
        ways.insert(0, ((" ".join(condition),), Chain(parts=tuple(body))))
        return Choice(word=None, ways=tuple(ways), has_else=has_else, line=self._line(node))

    def _clause(self, node: Any, depth: int) -> tuple[Chain, str | None]:
        if node.type == "else_clause":
            return self.chain(node, depth), None
        at = next((n for n, c in enumerate(node.children) if c.type == "then"), 0)
        text = " ".join(_text(c) for c in node.children[:at] if c.is_named)
        return self.chain(node, depth, skip=at + 1), text

    def _case(self, node: Any, depth: int) -> Choice:
        value = node.child_by_field_name("value")
        ways: list[tuple[tuple[str, ...], Part]] = []
        for item in node.children:
            if item.type != "case_item":
                continue
            at = next((n for n, c in enumerate(item.children) if c.type == ")"), 0)
            patterns = tuple(_bare(_text(c)) for c in item.children[:at] if c.is_named)
            ways.append((patterns, self.chain(item, depth, skip=at + 1)))
        return Choice(
            word=_bare(_text(value)) if value is not None else "",
            ways=tuple(ways),
            has_else=any("*" in patterns for patterns, _ in ways),
            line=self._line(node),
        )

    def _loop(self, node: Any, depth: int) -> Loop:
        body = node.child_by_field_name("body")
        condition = node.child_by_field_name("condition")
        return Loop(
            condition=self.part(condition, depth + 1) if condition is not None else None,
            body=self.chain(body, depth) if body is not None else Chain(parts=()),
            line=self._line(node),
            text=_text(node)[: limits.TEXT_MAX],
        )


def _with_text(simple: Simple, node: Any) -> Simple:
    """Return Python that reads its program from a here-document as if the words had it."""
    name = (simple.words or ("",))[0]
    is_given = re.search(r"(^|/)python[\d.]*$", name) and set(simple.words[1:]) <= {"-", "-u"}
    for redirect in node.children if is_given else ():
        for child in redirect.children if redirect.type == "heredoc_redirect" else ():
            if child.type == "heredoc_body":
                told = _text(child)[: limits.TEXT_MAX]
                return Simple(words=(name, "-c", told), line=simple.line, assigned=simple.assigned)
    return simple


def _bare(word: str) -> str:
    """Remove the quotes of a word, and the escapes that only keep the shell from reading it."""
    if len(word) > 1 and word[0] == word[-1] == "'" and "'" not in word[1:-1]:
        return word[1:-1]
    if len(word) > 1 and word[0] == word[-1] == '"' and '"' not in word[1:-1].replace('\\"', ""):
        return re.sub(r"\\([\"\\$`])", r"\1", word[1:-1])
    if "'" in word or '"' in word:
        return re.sub(r"[\"']", "", word)
    return re.sub(r"\\\n", "", word)


def _plain_words(text: str) -> tuple[str, ...]:
    return tuple(_bare(word) for word in text.split())


def walk(part: Part, depth: int = 0) -> list[Simple]:
    """Return all commands beneath a part, in the order of the text; functions' too."""
    if depth > limits.SHELL_DEPTH_MAX:
        return []
    match part:
        case Simple():
            return [part]
        case Chain() | Pipe():
            return [simple for inner in part.parts for simple in walk(inner, depth + 1)]
        case Background():
            return walk(part.part, depth + 1)
        case Choice():
            return [simple for _, inner in part.ways for simple in walk(inner, depth + 1)]
        case Loop():
            first = walk(part.condition, depth + 1) if part.condition is not None else []
            return first + walk(part.body, depth + 1)
        case Group() | Function():
            return walk(part.body, depth + 1)


def loops(part: Part, depth: int = 0) -> list[Loop]:
    """Return the outermost loops beneath a part."""
    if depth > limits.SHELL_DEPTH_MAX:
        return []
    match part:
        case Loop():
            return [part]
        case Chain() | Pipe():
            return [loop for inner in part.parts for loop in loops(inner, depth + 1)]
        case Choice():
            return [loop for _, inner in part.ways for loop in loops(inner, depth + 1)]
        case Background():
            return loops(part.part, depth + 1)
        case Group() | Function():
            return loops(part.body, depth + 1)
        case Simple():
            return []
