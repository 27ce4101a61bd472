"""Agents: a model and its tools going in turns, as a graph that survives."""

from perdure.agent._agent import Agent, AgentLimits, Conversation
from perdure.agent._messages import (
    Ending,
    Message,
    Model,
    Reply,
    Role,
    ToolCall,
    ToolSpec,
    Usage,
)
from perdure.agent._openai import OpenAIModel
from perdure.agent._sandbox_tools import sandbox_tools
from perdure.agent._scripted import ScriptedModel, call
from perdure.agent._tools import Tool, tool

__all__ = [
    "Agent",
    "AgentLimits",
    "Conversation",
    "Ending",
    "Message",
    "Model",
    "OpenAIModel",
    "Reply",
    "Role",
    "ScriptedModel",
    "Tool",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "call",
    "sandbox_tools",
    "tool",
]
