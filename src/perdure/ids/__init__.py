"""Typed identifiers. A `NewType` of str each: free at run time, no mix-up for the type checker."""

from typing import NewType

RunId = NewType("RunId", str)
"""One execution of a graph; `r_` + 26 characters that sort by start time."""

ThreadId = NewType("ThreadId", str)
"""The long-lived line of state that runs belong to; chosen by the user, or the run's own id."""

TenantId = NewType("TenantId", str)
"""Whose data it is; `default` where the user does not say."""

WorkerId = NewType("WorkerId", str)
"""One worker process; `w_` + 26 characters."""

EffectId = NewType("EffectId", str)
"""One logical effect: `e_` + 32 hexadecimal digits of its identity. Stable over attempts."""

AskId = NewType("AskId", str)
"""One question to a person: `a_` + 32 hexadecimal digits of its identity."""

TaskPath = NewType("TaskPath", str)
"""One node execution in a run: `3:assess`, `3:assess#2` (fan-out), `3:outer/1:inner` (subgraph)."""

__all__ = ["AskId", "EffectId", "RunId", "TaskPath", "TenantId", "ThreadId", "WorkerId"]
