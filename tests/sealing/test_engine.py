"""The engine's own tests once more, on encrypted stores: the fixtures here open those."""

from types import ModuleType

from tests.engine import (
    test_children,
    test_effects,
    test_forks,
    test_found_by_faults,
    test_inheriting,
    test_lasting_rules,
    test_outlook_timeline_doctor,
    test_schedules,
    test_versions,
    test_virtual_time,
    test_waits,
    test_workers,
)

# What each reaches for behind the runtime: rows as the store has them, or a store of its own.
LEFT_OUT: frozenset[str] = frozenset()


def _take_over(module: ModuleType) -> None:
    """Make the tests and fixtures of a module tests and fixtures of this one."""
    of = module.__name__.rpartition(".")[2].removeprefix("test_")
    for name, value in vars(module).items():
        if name.startswith("test_") and name not in LEFT_OUT:
            globals()[f"{name}__{of}"] = value
        elif type(value).__name__ == "FixtureFunctionDefinition":
            globals()[name] = value


for _module in (
    test_children,
    test_effects,
    test_forks,
    test_found_by_faults,
    test_inheriting,
    test_lasting_rules,
    test_outlook_timeline_doctor,
    test_schedules,
    test_versions,
    test_virtual_time,
    test_waits,
    test_workers,
):
    _take_over(_module)
