"""A model behind an endpoint: real sockets, and streams as bad as they come."""

import json
import traceback

import pytest

from perdure.agent import Agent, AgentLimits, Ending, Message, OpenAIModel, Role, ToolCall, tool
from perdure.agent._wire import CALLS_SEEN_MAX
from perdure.agent.limits import ARGUMENTS_CHARS_MAX
from perdure.errors import ModelUnavailable, Rejected, RunFailed, SettingInvalid
from tests.agent.endpoint import (
    DONE,
    Answer,
    Endpoint,
    call_reply,
    called,
    counted,
    delta,
    event,
    split,
    text_reply,
)

KEY = "sk-very-secret-1234"
ASKED = [Message(role=Role.USER, text="hello?")]


@pytest.fixture(autouse=True)
def _no_key_of_this_machine(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


async def reply_to(*answers, messages=ASKED, tools=(), on_chunk=lambda _text: None, **options):
    async with Endpoint(answers) as endpoint:
        model = OpenAIModel("m-1", base_url=endpoint.url, **options)
        return await model.reply(messages, tools, on_chunk=on_chunk), endpoint


async def test_a_conversation_is_asked_as_the_protocol_has_it():
    @tool(kind="pure")
    async def add(a: int) -> int:
        """Add one."""

    messages = [
        Message(role=Role.SYSTEM, text="be brief"),
        *ASKED,
        Message(
            role=Role.ASSISTANT, tool_calls=(ToolCall(id="c1", name="add", arguments='{"a":'),)
        ),
        Message(role=Role.TOOL, text="no", call_id="c1", name="add", is_error=True),
    ]
    options = {"temperature": 0, "stream_options": None}
    _, endpoint = await reply_to(
        text_reply(), messages=messages, tools=[add.spec], api_key=KEY, options=options
    )
    [asked] = endpoint.asked
    assert asked["line"] == "POST /v1/chat/completions HTTP/1.1"
    assert endpoint.headers[0]["authorization"] == f"bearer {KEY}"
    assert (asked["model"], asked["stream"], asked["temperature"]) == ("m-1", True, 0)
    assert "stream_options" not in asked
    assert [each["role"] for each in asked["messages"]] == ["system", "user", "assistant", "tool"]
    [sent] = asked["messages"][2]["tool_calls"]
    assert sent["function"] == {"name": "add", "arguments": "{}"}, "what no server could parse"
    assert asked["messages"][3]["tool_call_id"] == "c1"
    assert asked["tools"][0]["function"]["parameters"]["required"] == ["a"]


async def test_what_a_person_said_in_a_row_is_sent_as_one():
    _, endpoint = await reply_to(text_reply(), messages=[*ASKED, *ASKED])
    assert [each["content"] for each in endpoint.asked[0]["messages"]] == ["hello?\n\nhello?"]


async def test_without_a_key_none_is_sent():
    _, endpoint = await reply_to(text_reply())
    assert "authorization" not in endpoint.headers[0]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_a_stream_may_be_split_anywhere(size):
    body = (
        b": a comment\r\n\r\n"
        + delta(role="assistant", content="")
        + delta(content="Grüße, ")
        + delta(content="世界 🌍")
        + called(0, id="a", name="first", arguments='{"x"')
        + called(1, id="b", name="second", arguments="{}")
        + called(0, arguments=':"ü"}')
        + delta(finish="tool_calls")
        + counted(11, 5)
        + DONE
    )
    chunks = []
    reply, _ = await reply_to(Answer(split(body, size)), on_chunk=chunks.append)
    assert reply.text == "Grüße, 世界 🌍"
    assert chunks == ["Grüße, ", "世界 🌍"]
    assert reply.tool_calls == (
        ToolCall(id="a", name="first", arguments='{"x":"ü"}'),
        ToolCall(id="b", name="second", arguments="{}"),
    )
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (11, 5)


async def test_dialects_are_understood():
    no_index = event(
        {
            "choices": [
                {
                    "delta": {
                        "tool_calls": [{"id": i, "function": {"name": "f", "arguments": {"n": i}}}]
                    }
                }
                for i in "a"
            ]
        }
    ) + event({"choices": [{"delta": {"tool_calls": [{"id": "b", "function": {"name": "g"}}]}}]})
    reply, _ = await reply_to(no_index + delta(finish="stop"))
    assert [(each.id, each.name, each.arguments) for each in reply.tool_calls] == [
        ("a", "f", '{"n":"a"}'),
        ("b", "g", "{}"),
    ]
    assert reply.usage is None
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in "pq"]
    whole = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    answer = Answer([json.dumps(whole).encode()], kind="application/json")
    reply, _ = await reply_to(answer)
    assert [each.name for each in reply.tool_calls] == ["p", "q"]
    cut, _ = await reply_to(delta(content="half of it") + delta(finish="length") + DONE)
    assert cut.is_cut


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (delta(content="half"), "ended before the reply did"),
        (b"", "ended before the reply did"),
        (DONE, "ended before the reply did"),
        (b"data: {\n\n", "garbled"),
        (b"data: \xff\xfe\n\n", "garbled"),
        (b"data: " + b"[" * 200_000 + b"\n\n", "garbled"),
        (event([1, 2]), "garbled"),
        (event({"choices": "none"}), "garbled"),
        (event({"choices": [{"delta": {"content": 7}}]}), "garbled"),
        (event({"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]}), "garbled"),
        (event({"error": {"message": "overloaded", "code": 529}}), "overloaded"),
        (
            b"".join(called(n, id=str(n), name="f") for n in range(CALLS_SEEN_MAX + 1)),
            "more than",
        ),
        (b"data: " + b"x" * (2 << 20) + b"\n\n", "limit"),
    ],
)
async def test_what_is_no_reply_is_asked_for_again(body, says):
    with pytest.raises(ModelUnavailable, match=says):
        await reply_to(Answer(split(body, 65536)))


async def test_arguments_without_end_are_kept_one_character_too_long():
    piece = called(0, name="f", id="a", arguments="x" * 100_000)
    reply, _ = await reply_to(piece * 6 + delta(finish="stop") + DONE)
    assert len(reply.tool_calls[0].arguments) == ARGUMENTS_CHARS_MAX + 1


async def test_dropped_connections_and_silence_are_asked_for_again():
    with pytest.raises(ModelUnavailable, match="no reply was kept"):
        await reply_to(Answer([delta(content="half")], drops=True))
    with pytest.raises(ModelUnavailable, match="Timeout"):
        await reply_to(Answer([delta(content="half")], hangs=True), silence_s=0.05)
    with pytest.raises(ModelUnavailable, match="Connect"):
        await OpenAIModel("m", base_url="http://127.0.0.1:1/v1").reply([], [], on_chunk=print)
    with pytest.raises(ModelUnavailable, match="content type"):
        await reply_to(Answer([b"<html>"], kind="text/html"))


@pytest.mark.parametrize(
    ("status", "headers", "after_s"),
    [
        (429, {"Retry-After": "inf"}, 0.0),
        (429, {"Retry-After": "1e300"}, 3600.0),
        (429, {"Retry-After": "17"}, 17.0),
        (429, {}, 0.0),
        (503, {"Retry-After": "nonsense"}, 0.0),
        (529, {"Retry-After": "-5"}, 0.0),
        (
            500,
            {
                "Date": "Sun, 29 Nov 2026 10:00:00 GMT",
                "Retry-After": "Sun, 29 Nov 2026 10:01:30 GMT",
            },
            90.0,
        ),
    ],
)
async def test_a_busy_endpoint_is_asked_again_when_it_says(status, headers, after_s):
    body = [b'{"error": {"message": "slow down"}}']
    answer = Answer(body, status=status, headers=headers, kind="application/json")
    with pytest.raises(Rejected, match=f"HTTP {status}: slow down") as caught:
        await reply_to(answer)
    assert caught.value.retry_after_s == after_s


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, {"error": {"message": f"Incorrect API key: {KEY}"}}, "OPENAI_API_KEY"),
        (400, {"error": {"message": "too many tokens"}}, "too many tokens"),
        (404, {"detail": "no such model"}, "base_url"),
        (302, {}, "base_url"),
        (429, {"error": {"message": "pay", "code": "x", "type": "insufficient_quota"}}, "429"),
    ],
)
async def test_a_refusal_is_final_and_never_shows_the_key(status, body, says):
    answer = Answer(
        [json.dumps(body).encode()],
        status=status,
        kind="application/json",
        headers={"Location": "http://127.0.0.1:1/elsewhere"},
    )
    if status == 429:
        answer.pieces = [b'{"error": {"message": "insufficient_quota: pay first"}}']
    with pytest.raises(Rejected, match=says) as caught:
        await reply_to(answer, api_key=KEY)
    assert caught.value.retry_after_s is None
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_a_refusal_without_end_is_cut():
    answer = Answer([b"y" * 60_000] * 4, status=400)
    with pytest.raises(Rejected) as caught:
        await reply_to(answer)
    assert len(str(caught.value)) < 2_000


async def test_the_key_is_shown_nowhere(monkeypatch):
    model = OpenAIModel("m", base_url=f"https://me:{KEY}@example.org/v1?x={KEY}", api_key=KEY)
    assert KEY not in repr(model)
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\né")
    with pytest.raises(SettingInvalid) as caught:
        await OpenAIModel("m", base_url="http://127.0.0.1:1").reply([], [], on_chunk=print)
    assert KEY not in str(caught.value)
    with pytest.raises(SettingInvalid, match="base_url"):
        OpenAIModel("m", base_url="ftp://x")


async def test_an_agent_outlasts_a_bad_endpoint(open_runtime):
    made = []

    @tool(kind="keyed")
    async def order(what: str, *, idempotency_key: str) -> str:
        """Order something."""
        made.append(what)
        return f"ordered {what}"

    answers = [
        Answer([b"{}"], status=503),
        Answer([called(0, name="order", arguments='{"what"')], drops=True),
        call_reply("order", '{"what":"tea"}'),
        text_reply("It is ordered."),
    ]
    async with Endpoint(answers) as endpoint:
        agent = Agent(name="buyer", model=OpenAIModel("m", base_url=endpoint.url), tools=[order])
        runtime = await open_runtime(agent)
        run = await runtime.start(agent.graph, {"prompt": "tea, please"})
        state = await run.result(timeout=18)
    assert (state.answer, state.ended, made) == ("It is ordered.", Ending.ANSWERED, ["tea"])
    assert [each["messages"][-1]["role"] for each in endpoint.asked] == ["user"] * 3 + ["tool"]
    assert (state.turns, state.output_tokens > 0) == (2, True)


async def test_a_run_with_a_wrong_key_fails_at_once_and_keeps_no_key(open_runtime, tmp_path):
    body = [json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()]
    async with Endpoint([Answer(body, status=401, kind="application/json")]) as endpoint:
        model = OpenAIModel("m", base_url=endpoint.url, api_key=KEY)
        agent = Agent(name="locked", model=model, limits=AgentLimits(reply_attempts_max=5))
        runtime = await open_runtime(agent)
        run = await runtime.start(agent.graph, {"prompt": "hello"})
        with pytest.raises(RunFailed, match="key was not accepted") as caught:
            await run.result(timeout=10)
        assert len(endpoint.asked) == 1
    assert KEY not in str(caught.value)
    files = [path for path in tmp_path.rglob("store.db*") if path.is_file()]
    assert all(KEY.encode() not in path.read_bytes() for path in files)
