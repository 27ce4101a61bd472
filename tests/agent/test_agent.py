"""The loop: turns, tools, approval, limits, and what a crash does not repeat."""

import asyncio
from collections import Counter

import pytest

from perdure import NeedsDecision, Rejected, RunFailed, Runtime, WorkerSettings
from perdure.agent import (
    Agent,
    AgentLimits,
    Conversation,
    Ending,
    Reply,
    Role,
    ScriptedModel,
    ToolCall,
    Usage,
    call,
    tool,
)
from perdure.agent.limits import ALIAS_CHARS_MAX, CALLS_MAX, TEXT_CHARS_MAX
from tests.agent.parts import CountingModel, done, double, results_of, until

pytestmark = pytest.mark.timeout(60)


async def test_turns_go_on_until_there_is_an_answer(open_runtime):
    model = CountingModel([call("double", number=2), call("double", number=4), "It is 8."])
    agent = Agent(name="maths", model=model, tools=[double], instructions="Be exact.")
    runtime = await open_runtime(agent)
    state = await done(runtime, agent, "What is 2 doubled twice?")
    assert isinstance(state, Conversation)
    assert (state.answer, state.ended, state.turns) == ("It is 8.", Ending.ANSWERED, 3)
    assert results_of(state) == ["4", "8"]
    shown, tools = model.asked[0]
    assert [(each.role, each.text) for each in shown] == [
        (Role.SYSTEM, "Be exact."),
        (Role.USER, "What is 2 doubled twice?"),
    ]
    assert [each.name for each in tools] == ["double"]
    assert all(each.role is not Role.SYSTEM for each in state.messages)
    assert state.input_tokens > 0


async def test_a_thread_goes_on_with_what_was_said(open_runtime):
    agent = Agent(name="chat", model=ScriptedModel(["one", "two"]))
    runtime = await open_runtime(agent)
    assert (await done(runtime, agent, "first", thread="t")).turns == 1
    state = await done(runtime, agent, "second", thread="t")
    assert [each.text for each in state.messages] == ["first", "one", "second", "two"]
    assert (state.turns, state.answer) == (1, "two")
    run = await runtime.start(agent.graph, {}, thread="t")
    with pytest.raises(RunFailed, match="nothing was said"):
        await run.result(timeout=10)


async def test_what_is_said_is_streamed(open_runtime):
    def late(_messages):
        return "line one\n" * 10

    agent = Agent(
        name="speaker", model=ScriptedModel([call("double", number=1), late]), tools=[double]
    )
    runtime = await open_runtime(agent)
    run = await runtime.start(agent.graph, {"prompt": "speak"})
    state = await run.result(timeout=10)
    chunks = [e.body["chunk"] for e in await runtime.events(run.id) if e.kind == "emitted"]
    assert [each for each in chunks if "begins" in each] == [
        {"turn": 1, "begins": True},
        {"turn": 2, "begins": True},
    ]
    texts = [each["text"] for each in chunks if "text" in each]
    assert "".join(texts) == state.answer
    assert 1 < len(texts) < 10


async def test_free_calls_run_at_once_and_others_in_order(open_runtime):
    running, order, all_at_once = set(), [], asyncio.Event()

    def worker(name, kind):
        async def work(number: int, *, idempotency_key: str = "") -> str:
            running.add((name, number))
            if {each for each, _ in running} == {"free", "keyed", "alone"}:
                all_at_once.set()
            async with asyncio.timeout(40):
                await all_at_once.wait()
            await asyncio.sleep(0.02)
            order.append((name, number))
            running.discard((name, number))
            return f"{name}{number}"

        return tool(kind=kind, name=name, description="Works.")(work)

    calls = [call(name, number=n) for n in (1, 2) for name in ("free", "keyed", "alone")]
    model = ScriptedModel([calls, "done"])
    tools = [worker("free", "pure"), worker("keyed", "keyed"), worker("alone", "once")]
    agent = Agent(name="workers", model=model, tools=tools)
    runtime = await open_runtime(agent)
    state = await done(runtime, agent)
    assert results_of(state) == ["free1", "keyed1", "alone1", "free2", "keyed2", "alone2"]
    assert all_at_once.is_set()
    assert [each for each in order if each[0] == "alone"] == [("alone", 1), ("alone", 2)]


async def test_a_plain_function_is_a_tool_of_kind_once(open_runtime):
    def shout(text: str, times: int = 1) -> list[str]:
        """Shout."""
        return [text.upper()] * times

    agent = Agent(
        name="shouter", model=ScriptedModel([call("shout", text="a"), "ok"]), tools=[shout]
    )
    assert str(agent.tools[0].effect.kind) == "once"
    runtime = await open_runtime(agent)
    assert results_of(await done(runtime, agent)) == ['["A"]']


async def test_what_does_not_fit_goes_back_to_the_model(open_runtime):
    sent = [
        "{",
        "[]",
        '{"number": "7"}',
        '{"number": 7, "more": 1}',
        "{}",
        '{"number": 1e999}',
        '{"number": ' + "[" * 100_000,
        "x" * 400_000,
        "\ud800",
    ]
    calls = [ToolCall(id="same", name="double", arguments=each) for each in sent]
    calls += [call("missing"), call(""), call("double", number=3)]
    agent = Agent(name="hostile", model=ScriptedModel([calls, "ok"]), tools=[double])
    runtime = await open_runtime(agent)
    state = await done(runtime, agent)
    told = [each for each in state.messages if each.role is Role.TOOL]
    assert [each.is_error for each in told] == [True] * 11 + [False]
    assert all(len(each.text) <= 1_100 for each in told)
    assert len({each.call_id for each in told}) == len(told)
    assert "the call was not made" in told[0].text
    assert "$.number" in told[2].text
    assert "there is no tool 'missing'. The tools are: double" in told[9].text
    assert told[-1].text == "6"


async def test_a_reply_without_bounds_is_cut(open_runtime):
    calls = tuple(
        ToolCall(id="i" * 5_000, name="n" * 5_000, arguments="{}") for _ in range(CALLS_MAX + 5)
    )
    usage = Usage(input_tokens=-5, output_tokens=1 << 62)
    first = Reply(text="x" * (TEXT_CHARS_MAX + 5), tool_calls=calls, usage=usage)
    agent = Agent(name="endless", model=ScriptedModel([first, "ok"]))
    runtime = await open_runtime(agent)
    state = await done(runtime, agent)
    said = state.messages[1]
    assert len(said.tool_calls) == CALLS_MAX
    assert all(len(each.id) <= ALIAS_CHARS_MAX for each in said.tool_calls)
    assert "5 more calls were left out" in said.text
    assert len(said.text) < TEXT_CHARS_MAX + 200
    assert (state.ended, state.input_tokens) == (Ending.TOKENS, 0)
    assert len(state.messages) == 2 + CALLS_MAX, "every call has a result"


async def test_results_are_cut_in_the_middle(open_runtime):
    @tool(kind="pure")
    async def long() -> str:
        """Say much."""
        return "a" * 600 + "\ud800" + "z" * 600

    limits = AgentLimits(result_chars_max=100)
    agent = Agent(
        name="cut", model=ScriptedModel([call("long"), "ok"]), tools=[long], limits=limits
    )
    runtime = await open_runtime(agent)
    [text] = results_of(await done(runtime, agent))
    assert text.startswith("a" * 50)
    assert text.endswith("z" * 50)
    assert "[... 1,101 of 1,201 characters left out ...]" in text


@pytest.mark.parametrize(
    ("limits", "ending", "turns"),
    [
        (AgentLimits(turns_max=3), Ending.TURNS, 3),
        (AgentLimits(tokens_max=30), Ending.TOKENS, None),
        (AgentLimits(repeats_max=2), Ending.LOOPING, None),
    ],
)
async def test_limits_end_a_run_and_the_thread_can_go_on(open_runtime, limits, ending, turns):
    number = iter(range(100))
    fresh = ending is not Ending.LOOPING

    def again(_messages):
        return call("double", number=next(number) if fresh else 1)

    steps = [again] * 3 + ["done at last"]
    agent = Agent(name="limited", model=ScriptedModel(steps), tools=[double], limits=limits)
    runtime = await open_runtime(agent)
    state = await done(runtime, agent, thread="t")
    assert (state.ended, state.answer) == (ending, "")
    assert turns in {None, state.turns}
    assert state.messages[-1].role is Role.TOOL, "no call is left without a result"
    run = await runtime.start(agent.graph, {}, thread="t")
    await run.result(timeout=10)


async def test_a_model_that_says_nothing_is_asked_twice_more(open_runtime):
    model = CountingModel(["", " \n", Reply(), "too late"])
    model._steps = [lambda _m: Reply()] * 9
    agent = Agent(name="silent", model=model)
    runtime = await open_runtime(agent)
    state = await done(runtime, agent)
    assert (state.ended, state.turns, len(model.asked)) == (Ending.SILENT, 3, 3)
    assert [each.role for each in state.messages] == [Role.USER, Role.USER]
    patient = iter(["", "I am back"])
    agent = Agent(name="slow", model=ScriptedModel([lambda _m: next(patient)] * 2))
    runtime = await open_runtime(agent)
    assert (await done(runtime, agent)).answer == "I am back"


async def test_an_answer_that_was_cut_says_so(open_runtime):
    agent = Agent(name="cut-off", model=ScriptedModel([Reply(text="half of it", is_cut=True)]))
    runtime = await open_runtime(agent)
    state = await done(runtime, agent)
    assert (state.ended, state.answer) == (Ending.CUT, "half of it")


# -- failures ----------------------------------------------------------------------------------


async def test_the_kernel_waits_as_long_as_the_endpoint_says(on_virtual_time):
    asked = []

    def busy(_messages):
        asked.append(clock.monotonic_s())
        if len(asked) < 3:
            message = "slow down"
            raise Rejected(message, retry_after_s=3600)
        return "here I am"

    agent = Agent(name="patient", model=ScriptedModel([busy]))
    runtime, clock = await on_virtual_time(agent)
    async with clock.autojump():
        run = await runtime.start(agent.graph, {"prompt": "hello"})
        assert (await run.result()).answer == "here I am"
    assert asked[1] - asked[0] >= 3600
    assert asked[2] - asked[1] >= 3600
    begun = [
        e
        for e in await runtime.events(run.id)
        if e.kind == "emitted" and "begins" in e.body["chunk"]
    ]
    assert len(begun) == 3, "what was streamed before is void"


async def test_a_model_that_stays_broken_fails_the_run(on_virtual_time):
    def broken(_messages):
        raise ConnectionResetError(104, "reset")

    limits = AgentLimits(reply_attempts_max=3)
    agent = Agent(name="broken", model=ScriptedModel([broken]), limits=limits)
    runtime, clock = await on_virtual_time(agent)
    async with clock.autojump():
        run = await runtime.start(agent.graph, {"prompt": "hello"}, thread="t")
        with pytest.raises(RunFailed, match=r"after 3 attempt\(s\): ConnectionResetError"):
            await run.result()
    state = await runtime.state("t")
    assert [each.text for each in state.messages] == ["hello"]


async def test_a_reply_that_takes_too_long_is_asked_for_again(on_virtual_time):
    class Slow(CountingModel):
        async def reply(self, messages, tools, *, on_chunk):
            if not self.asked:
                self.asked.append(1)
                await clock.sleep(1e6)
            return await super().reply(messages, tools, on_chunk=on_chunk)

    model = Slow(["at last"])
    agent = Agent(name="slow-model", model=model, limits=AgentLimits(reply_s_max=30))
    runtime, clock = await on_virtual_time(agent)
    async with clock.autojump():
        assert (
            await (await runtime.start(agent.graph, {"prompt": "?"})).result()
        ).answer == "at last"


async def test_a_failed_tool_is_told_and_an_uncertain_one_asks_a_person(open_runtime):
    @tool(kind="pure", retry=None)
    async def look(number: int) -> int:
        """Look."""
        message = "nothing there"
        raise Rejected(message)

    @tool
    async def send(number: int) -> int:
        """Send."""
        raise TimeoutError

    steps = [call("look", number=1), call("send", number=1), "ok"]
    agent = Agent(name="failing", model=ScriptedModel(steps), tools=[look, send])
    runtime = await open_runtime(agent)
    run = await runtime.start(agent.graph, {"prompt": "go"})
    with pytest.raises(NeedsDecision):
        await run.result(timeout=10)
    [entry] = await runtime.effects("uncertain")
    await runtime.resolve(entry.id, happened=True, result=7, by="ann")
    state = await run.result(timeout=10)
    assert results_of(state) == ["the call failed: nothing there", "7"]


async def test_a_tool_that_the_runtime_can_not_serve_parks_the_run(open_runtime):
    @tool(kind="contained")
    async def touch(path: str, *, sandbox) -> str:
        """Touch."""

    agent = Agent(name="boxless", model=ScriptedModel([call("touch", path="x")] * 3), tools=[touch])
    runtime = await open_runtime(agent)
    with pytest.raises(NeedsDecision, match="has no sandbox"):
        await done(runtime, agent)


async def test_a_thread_whose_run_failed_in_a_call_can_go_on(open_runtime):
    @tool(kind="pure")
    async def touch(path: str) -> object:
        """Touch."""
        return object()  # can't be recorded: a fault of the tool's code

    steps = [call("touch", path="x"), "I see."]
    agent = Agent(name="again", model=ScriptedModel(steps), tools=[touch])
    runtime = await open_runtime(agent)
    with pytest.raises(RunFailed, match="object"):
        await done(runtime, agent, thread="t")
    state = await done(runtime, agent, "and now?", thread="t")
    assert [each.role.value for each in state.messages] == [
        *["user", "assistant", "tool", "user", "assistant"]
    ]
    assert "whether it was done is not known" in state.messages[2].text
    assert state.messages[2].call_id == state.messages[1].tool_calls[0].id


async def test_a_conversation_can_be_given_as_json(open_runtime):
    agent = Agent(name="given", model=ScriptedModel(["first", "second"]))
    runtime = await open_runtime(agent)
    said = [
        {"role": "user", "text": "one"},
        {"role": "assistant", "text": "first"},
        {"role": "user", "text": "two"},
    ]
    run = await runtime.start(agent.graph, {"messages": said})
    assert (await run.result(timeout=10)).answer == "second"


# -- durability --------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def lasting_url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/agents.db"
    server = request.getfixturevalue("postgres")
    return server.url(request.getfixturevalue("schema"))


async def test_a_worker_that_goes_on_asks_and_calls_nothing_again(lasting_url):
    url = lasting_url
    asked, made, gate = Counter(), Counter(), asyncio.Event()

    def build():
        def step(number, what):
            def reply(_messages):
                asked[number] += 1
                return what

            return reply

        @tool(kind="keyed")
        async def order(what: str, *, idempotency_key: str) -> str:
            """Order."""
            made[what] += 1
            if what == "cups" and not gate.is_set():
                await asyncio.Event().wait()
            return f"ordered {what}"

        steps = [
            step(0, [call("order", what="tea"), call("double", number=2)]),
            step(1, [call("order", what="milk"), call("order", what="cups")]),
            step(2, "all is ordered"),
        ]
        return Agent(name="buyer", model=ScriptedModel(steps), tools=[order, double])

    settings = WorkerSettings(lease_ttl_s=5, heartbeat_s=1)
    first = build()
    async with Runtime.open(url, graphs=[first.graph], worker=settings) as runtime:
        run = await runtime.start(first.graph, {"prompt": "tea for two"})

        async def is_sent():
            return made["cups"] > 0

        await until(is_sent)
        await runtime.close(window_s=0.0)
    gate.set()
    second = build()
    async with Runtime.open(url, graphs=[second.graph], worker=settings) as runtime:
        state = await (await runtime.get(run.id)).result(timeout=20)
        report = await runtime.replay(run.id, graph=second.graph)
    assert state.answer == "all is ordered"
    assert asked == {0: 1, 1: 1, 2: 1}
    assert made == {"tea": 1, "milk": 1, "cups": 2}, "sent again under the same key"
    assert report.is_clean


async def test_a_conversation_is_forked_and_read_without_its_agent(open_runtime, tmp_path):
    url = f"sqlite:///{tmp_path}/plain.db"
    agent = Agent(name="forked", model=ScriptedModel(["one", "two", "three"]))
    runtime = await open_runtime(agent, url=url)
    await done(runtime, agent, "first", thread="t")
    await done(runtime, agent, "second", thread="t")
    branch = await runtime.fork("t", at=4, update={"prompt": "another"})
    state = await branch.result(timeout=10)
    assert [each.text for each in state.messages][:2] == ["first", "one"]
    reader = await open_runtime(url=url, worker=False)
    kept = (await reader.state("t"))["messages"]
    assert [each["text"] for each in kept] == ["first", "one", "second", "two"]
