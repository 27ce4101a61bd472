"""Messages of LangChain come back exactly. Skipped, loudly, where langchain-core is missing."""

import inspect
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import END, START, Graph, Runtime, append, register_langchain
from perdure.codec import TypeRegistry, ValueCodec, describe
from perdure.errors import TypeUnknown, UsageError, ValueUnserializable

messages = pytest.importorskip(
    "langchain_core.messages",
    reason="NOT TESTED: LangChain's messages, as langchain-core is not installed: "
    "pip install 'perdure[langchain]'",
)

CLASSES = register_langchain()
codec = ValueCodec(TypeRegistry())

texts = st.text(max_size=8)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
maps = st.dictionaries(texts, json_like, max_size=3)
contents = texts | st.lists(
    texts | st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=3
)
calls = st.fixed_dictionaries({"name": texts, "args": maps, "id": texts | st.none()})
bad_calls = st.fixed_dictionaries(
    {"name": texts, "args": texts, "id": texts | st.none(), "error": texts | st.none()}
)
chunks = st.fixed_dictionaries(
    {
        "name": texts | st.none(),
        "args": texts | st.none(),
        "id": texts | st.none(),
        "index": st.none() | st.integers(0, 3),
    }
)
usage = st.none() | st.builds(
    lambda a, b: {"input_tokens": a, "output_tokens": b, "total_tokens": a + b},
    st.integers(0, 9),
    st.integers(0, 9),
)
shared = {
    "content": contents,
    "additional_kwargs": maps,
    "response_metadata": maps,
    "id": texts | st.none(),
    "name": texts | st.none(),
}
made = st.one_of(
    st.builds(messages.HumanMessage, **shared),
    st.builds(messages.SystemMessage, **shared),
    st.builds(messages.ChatMessage, **shared, role=texts),
    st.builds(messages.FunctionMessage, **{**shared, "name": texts}),
    st.builds(
        messages.AIMessage,
        **shared,
        tool_calls=st.lists(calls, max_size=2),
        invalid_tool_calls=st.lists(bad_calls, max_size=2),
        usage_metadata=usage,
    ),
    st.builds(
        messages.ToolMessage,
        **shared,
        tool_call_id=texts,
        artifact=json_like | st.tuples(st.integers(), st.binary(max_size=4)),
        status=st.sampled_from(["success", "error"]),
    ),
    texts.map(lambda each: messages.RemoveMessage(id=each)),
    st.builds(messages.HumanMessageChunk, content=texts, id=texts | st.none()),
    st.builds(
        messages.AIMessageChunk,
        content=texts,
        tool_call_chunks=st.lists(chunks, max_size=2),
        usage_metadata=usage,
    ),
)


def exact(value: Any) -> Any:
    """All that a message has, with the types beside it."""
    return (
        type(value),
        repr(value.__dict__),
        repr(value.__pydantic_extra__),
        value.model_fields_set,
        value.__pydantic_private__,
    )


@settings(max_examples=500)
@given(made)
def test_messages_come_back(value):
    back = codec.decode(codec.encode(value))
    assert back == value
    assert exact(back) == exact(value)
    assert codec.canonical(back) == codec.canonical(value)
    describe(codec.encode(value))


def test_chunks_go_on_adding_up():
    one = messages.AIMessageChunk(
        content="a",
        tool_call_chunks=[{"name": "f", "args": '{"a"', "id": "1", "index": 0}],
    )
    other = messages.AIMessageChunk(
        content="b",
        tool_call_chunks=[{"name": None, "args": ":1}", "id": None, "index": 0}],
    )
    back = codec.decode(codec.encode(one)) + codec.decode(codec.encode(other))
    assert back == one + other
    assert back.tool_calls[0]["args"] == {"a": 1}


def test_every_class_of_messages_is_registered():
    there = {
        each
        for each in vars(messages).values()
        if inspect.isclass(each) and issubclass(each, messages.BaseMessage)
    }
    assert there <= set(CLASSES)
    assert register_langchain() == CLASSES


def test_a_class_of_a_users_own_must_be_registered():
    class Mine(messages.HumanMessage):
        more: int = 0

    with pytest.raises(ValueUnserializable, match="register_type"):
        codec.encode(Mine(content="x"))


def test_only_registered_classes_are_made(monkeypatch):
    encoded = codec.encode(messages.HumanMessage(content="x"))
    monkeypatch.setattr("perdure.codec._registry._explicit", {})
    with pytest.raises(TypeUnknown, match="HumanMessage"):
        ValueCodec(TypeRegistry()).decode(encoded)


@dataclass
class Chat:
    messages: Annotated[list[Any], append] = field(default_factory=list)


async def test_a_conversation_in_a_run(tmp_path):
    graph = Graph(Chat, name="chat")

    @graph.node
    async def answer(state: Chat) -> dict:
        call = {"name": "look", "args": {"at": state.messages[-1].content}, "id": "1"}
        return {"messages": [messages.AIMessage(content="", tool_calls=[call])]}

    graph.edge(START, answer)
    graph.edge(answer, END)
    url = f"sqlite:///{tmp_path}/store.db"
    async with Runtime.open(url, graphs=[graph]) as runtime:
        given = Chat(messages=[messages.HumanMessage(content="hi", id="h")])
        run = await runtime.start(graph, given, thread="t")
        await run.result(timeout=10)
    async with Runtime.open(url, graphs=[graph], worker=False) as runtime:
        state = await runtime.state("t")
    assert state.messages[0] == messages.HumanMessage(content="hi", id="h")
    assert state.messages[1].tool_calls[0]["args"] == {"at": "hi"}


def test_without_langchain_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    with pytest.raises(UsageError, match=r"perdure\[langchain\]"):
        register_langchain()
