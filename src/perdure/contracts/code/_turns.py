"""What is said in a conversation: how it is put into what holds it, and got from there again."""

import ast

from perdure.contracts._patterns import regex
from perdure.contracts.code._kept import is_item
from perdure.contracts.code._scopes import Scope, last_name, walk

HISTORY = regex(
    r"(?i)^(chat_?|conversation_?|message_?)?(history|messages|transcript|turns|dialogue|log)$"
)
ADDS = regex(r"^(append|extend|add_\w*messages?|add_turn|appendleft)$")
_KEEPS = regex(
    r"^(dump|dumps|save|persist|commit|insert|upsert|setex|hset|write|write_text|execute|put_item|"
    r"save_\w+|persist_\w+|insert_\w+|store_\w+|flush\w*|sync\w*)$"
)
_SAID = regex(r"(?i)message|msg|turn|entry|reply|response|answer|history|prompt")


def is_got(node: ast.expr, name: str) -> bool:
    """Whether an expression is an item of the dict: by brackets, `get` or `setdefault`."""
    return is_item(node, name, ("get", "setdefault"))


def part(node: ast.expr) -> str:
    """Return the name of an attribute or an item."""
    if isinstance(node, ast.Subscript):
        return str(node.slice.value) if isinstance(node.slice, ast.Constant) else ""
    return node.attr if isinstance(node, ast.Attribute) else ""


def adds_message(node: ast.Call) -> bool:
    """Whether what a call adds to something is a message."""
    if last_name(node.func).startswith("add_"):
        return True
    for given in node.args:
        for one in walk(given):
            match one:
                case ast.Dict():
                    keys = {key.value for key in one.keys if isinstance(key, ast.Constant)}
                    if keys & {"role", "content", "user", "assistant", "question", "text"}:
                        return True
                case ast.Call() if "Message" in last_name(one.func):
                    return True
                case ast.Name() | ast.Attribute() if _SAID.search(last_name(one)):
                    return True
    return False


def writes_elsewhere(scope: Scope) -> bool:
    """Whether a function writes to something that may outlive the process."""
    return any(_KEEPS.match(call.name) for call in scope.calls)
