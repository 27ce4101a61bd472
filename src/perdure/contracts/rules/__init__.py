"""The rules: from facts to verdicts, one function for each contract. No rule reads a file."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from perdure.contracts.code.facts import CodeFacts
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.findings import Contract, Finding
from perdure.contracts.rules import (
    _degrade,
    _drain,
    _hints,
    _migrations,
    _progress,
    _resources,
    _restart,
    _signal,
    _state,
    _update,
)
from perdure.contracts.rules._fallen import as_it_runs as as_it_runs
from perdure.contracts.rules._signal import is_handled as is_handled


class Rule(Protocol):
    """Judges one contract of one service."""

    def __call__(
        self, service: Service, code: CodeFacts, root: Root, *, strict: bool = False
    ) -> Finding:
        """Return the verdict with its story."""
        ...


RULES: Mapping[Contract, Rule] = MappingProxyType(
    {
        Contract.S0: _degrade.judge,
        Contract.S1: _state.judge_restart,
        Contract.S2: _state.judge_replacement,
        Contract.S3: _state.judge_replicas,
        Contract.S4: _migrations.judge,
        Contract.R1: _drain.judge,
        Contract.R2: _signal.judge,
        Contract.R3: _progress.judge,
        Contract.R4: _restart.judge,
        Contract.R5: _update.judge,
        Contract.R6: _hints.judge_effects,
        Contract.R7: _hints.judge_resume,
        Contract.R8: _hints.judge_memory,
        Contract.C1: _resources.judge,
        Contract.C2: _hints.judge_streams,
    }
)
"""Every rule by its contract, in the order in which reports tell them."""
