"""Proves a contract: a trial, several times over, and what that comes to.

Each repetition has fresh volumes, a network, threads and operations of its own, and a transcript in
a folder of its own. A repetition that did not get to the point where it breaks something is invalid
and says nothing. A contract is violated if one valid repetition violates it; it is held if all
valid ones hold it and there are enough of them; else the verdict is inconclusive.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from perdure.clock import Services
from perdure.contracts.deployment.facts import Root, Service
from perdure.contracts.findings import Contract
from perdure.contracts.inject import (
    _owner,
    _trial_clients,
    _trial_runs,
    _trial_state,
    limits,
)
from perdure.contracts.inject._outcome import Event, Need, Outcome, need_of
from perdure.contracts.inject._plan import Plan, build_images, needed_by, refuse_unsafe
from perdure.contracts.inject._probes import ProgramProbe, open_probe
from perdure.contracts.inject._stage import Stage, TrialInvalid
from perdure.contracts.inject._transcript import Progress, Transcript
from perdure.contracts.inject.engines import ContainerEngine
from perdure.contracts.inject.probes import Probe, ProbeFailed
from perdure.contracts.inject.settings import Settings
from perdure.errors import InjectionError, SettingInvalid, TrialImpossible

TRIALS: Mapping[Contract, Callable[[Stage], Awaitable[Outcome]]] = {
    Contract.S0: _trial_state.is_not_ready_without,
    Contract.S1: _trial_state.restart_keeps,
    Contract.S2: _trial_state.replacement_keeps,
    Contract.S3: _trial_state.replicas_agree,
    Contract.S4: _trial_state.waits_for_its_database,
    Contract.R1: _trial_runs.drain_fits_grace,
    Contract.R2: _trial_runs.signal_reaches_it,
    Contract.R3: _trial_runs.progress_is_saved,
    Contract.R4: _trial_runs.comes_back,
    Contract.R5: _trial_clients.update_keeps_listening,
    Contract.R6: _trial_runs.effects_happen_once,
    Contract.R7: _trial_runs.runs_are_resumed,
    Contract.R8: _trial_runs.memory_fits,
    Contract.C1: _trial_clients.resources_come_free,
    Contract.C2: _trial_clients.streams_resume,
}

OTHERS: Mapping[tuple[Contract, Event], Callable[[Stage], Awaitable[Outcome]]] = {
    (Contract.S4, Event.LOST): _trial_state.outlives_its_database,
}

VALID_MIN = 3
"""Valid repetitions that a verdict needs; all of them, where fewer are asked for."""


class Proven(StrEnum):
    """What repetitions come to."""

    HELD = "held"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"


class Ending(StrEnum):
    """What one repetition came to."""

    HELD = "held"
    VIOLATED = "violated"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """One trial: how it ended, in one sentence why, and the folder with its transcript."""

    number: int
    ending: Ending
    text: str
    transcript: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What breaking a service showed. `text` is one sentence; `folder` has every transcript."""

    contract: Contract
    service: str
    root: str
    engine: str
    event: str
    verdict: Proven
    text: str
    repetitions: tuple[Repetition, ...]
    folder: Path
    seed: int

    def to_json(self) -> dict[str, object]:
        """Return the shape of `perdure inject --json`."""
        return {
            "schema": 1,
            "contract": str(self.contract),
            "service": self.service,
            "root": self.root,
            "engine": self.engine,
            "event": self.event,
            "verdict": str(self.verdict),
            "text": self.text,
            "seed": self.seed,
            "folder": str(self.folder),
            "repetitions": [
                {
                    "number": each.number,
                    "ending": str(each.ending),
                    "text": each.text,
                    "transcript": str(each.transcript),
                }
                for each in self.repetitions
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be proved, of which service, how often, and where transcripts go."""

    folder: Path
    root: Root
    service: Service
    contract: Contract
    settings: Settings
    output: Path
    repetitions: int = 5
    seed: int = 0
    probe: Probe | None = None
    """One of the caller's own; `None`: the one that the settings name."""
    event: Event | None = None
    """What is done; `None`: what the contract is usually proved by."""

    @property
    def need(self) -> Need:
        """What that does and needs."""
        return need_of(self.contract, self.event)


async def prove(
    asked: Asked, engine: ContainerEngine, services: Services, progress: Progress | None = None
) -> Proof:
    """Break a service as the contract says, several times, and return what that shows.

    Cancel-safe: what was made is removed, and transcripts of repetitions that ended are kept, with
    `proof.json` saying what they come to so far.

    Args:
        asked: what is to be proved.
        engine: who makes containers.
        services: time and identifiers.
        progress: gets each line of each story as it is written.

    Raises:
        EngineMissing: the engine does not answer; nothing was started.
        EngineFailed: the engine refused something before the first repetition.
        TrialImpossible: the deployment or this host lacks what any trial needs; said at the first
            start at the latest, and not five times.
        SettingInvalid: the number of repetitions, or an event that the contract is not about.
    """
    if not 1 <= asked.repetitions <= limits.REPETITIONS_MAX:
        msg = (
            f"repetitions must lie between 1 and {limits.REPETITIONS_MAX}, not {asked.repetitions}"
        )
        raise SettingInvalid(msg)
    need_of(asked.contract, asked.event)
    version = await engine.open()
    await _owner.clean_up(engine)
    asked.output.mkdir(parents=True, exist_ok=True)
    probe = asked.probe or open_probe(asked.settings, asked.folder)
    lacking = _lacking(asked, engine, probe)
    if lacking:
        return _kept(_proof(asked, version, [], lacking))
    owner = _owner.myself()
    plan = await _planned(asked, engine, owner)
    done: list[Repetition] = []
    hopeless: str | None = None
    play = _Player(asked=asked, plan=plan, probe=probe, services=services, progress=progress)
    try:
        while len(done) < asked.repetitions and hopeless is None:
            done.append(await play.repetition(len(done) + 1))
            hopeless = _hopeless(done[-1], plan)
    finally:
        if isinstance(probe, ProgramProbe):
            await probe.close()
        await _remove_images(plan, owner)
        proof = _kept(_proof(asked, version, done, hopeless, plan.lacks_hook))
    return proof


_MISSING = re.compile(r"\b[\w.-]+: (command )?not found|No module named \S+|No such file")


def _hopeless(repetition: Repetition, plan: Plan) -> str | None:
    """Return why no repetition will start either: a program that this host does not have."""
    missing = _MISSING.search(repetition.text)
    if repetition.ending is not Ending.INVALID or missing is None or plan.has_images:
        return None
    return (
        f"it can't be started here: {missing.group()}. Plain processes need the packages of the "
        "application: activate the environment that has them, so that PATH names it, or use "
        "--engine docker"
    )


def _lacking(asked: Asked, engine: ContainerEngine, probe: Probe) -> str | None:
    """Return why the trial can't show anything here, `None` if it can."""
    need = asked.need
    features = sorted(need.features - engine.features)
    if features:
        return f"engine {engine.name} has no {' and no '.join(features)}"
    abilities = sorted(need.abilities - probe.abilities)
    if abilities:
        return f"the probe can't do {' and '.join(abilities)}; see abilities in perdure.inject.toml"
    if need.outside and not asked.settings.stubs:
        return 'it counts effects outside: name stubs = ["effects"] in perdure.inject.toml'
    return None


async def _planned(asked: Asked, engine: ContainerEngine, owner: str) -> Plan:
    dependencies = needed_by(asked.root, asked.service)
    plan = Plan(
        folder=asked.folder.resolve(),
        root=asked.root,
        service=asked.service,
        settings=asked.settings,
        engine=engine,
        dependencies=dependencies,
        images={},
    )
    refuse_unsafe(plan)
    if not plan.has_images:
        return plan
    labels = {_owner.LABEL: owner}
    everything = (*dependencies, asked.service)
    return replace(plan, images=await build_images(engine, asked.folder, everything, labels))


async def _remove_images(plan: Plan, owner: str) -> None:
    """Remove images that this process built; the engine keeps the layers that others use."""
    if not plan.has_images:
        return
    for handle, label in (await plan.engine.labelled(_owner.LABEL)).items():
        if handle.startswith("image:") and label == owner:
            await plan.engine.discard(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """Plays trials to their ends, whatever those are; only bugs and cancellation are errors."""

    asked: Asked
    plan: Plan
    probe: Probe
    services: Services
    progress: Progress | None

    async def repetition(self, number: int) -> Repetition:
        asked, clock, owner = self.asked, self.services.clock, _owner.myself()
        name = f"{asked.seed}/{asked.contract}/{number}/{owner}/{clock.now_us()}"
        trial = hashlib.sha256(name.encode()).hexdigest()[:12]
        transcript = Transcript(asked.output / f"{number:02d}", clock, self.progress)
        transcript.did(
            f"began repetition {number} of {asked.repetitions}: {asked.contract} of "
            f"{asked.service.name}, {asked.need.event}",
            trial=trial, seed=asked.seed, engine=self.plan.engine.name,
        )  # fmt: skip
        stage = Stage(
            plan=self.plan, probe=self.probe, transcript=transcript, clock=clock,
            trial=trial, owner=owner,
        )  # fmt: skip
        try:
            ending, text = await self._ending(stage)
            transcript.concluded(f"{ending}: {text}", ending=str(ending))
        except asyncio.CancelledError:
            transcript.concluded("stopped before its end")
            raise
        except TrialImpossible as impossible:
            transcript.concluded(f"impossible: {impossible}")
            raise
        finally:
            transcript.close()
        return Repetition(number=number, ending=ending, text=text, transcript=transcript.folder)

    async def _ending(self, stage: Stage) -> tuple[Ending, str]:
        try:
            async with asyncio.timeout(limits.TRIAL_S), stage:
                outcome = await _trial_of(self.asked)(stage)
        except TrialImpossible:  # nor would it be possible a second time
            raise
        except (TrialInvalid, ProbeFailed, InjectionError) as invalid:
            return Ending.INVALID, str(invalid)
        except TimeoutError:
            return Ending.INVALID, f"it took more than {limits.TRIAL_S:g} s"
        return (Ending.HELD if outcome.holds else Ending.VIOLATED), outcome.text


def _trial_of(asked: Asked) -> Callable[[Stage], Awaitable[Outcome]]:
    return OTHERS.get((asked.contract, asked.need.kind), TRIALS[asked.contract])


def _proof(
    asked: Asked, version: str, done: list[Repetition], lacking: str | None, hook: str = ""
) -> Proof:
    verdict, text = _verdict(done, asked.repetitions, lacking)
    if hook and asked.need.kind in _STOPPING and done:
        text = f"{text}; {hook}"
    return Proof(
        contract=asked.contract,
        service=asked.service.name,
        root=asked.root.root,
        engine=version,
        event=asked.need.event,
        verdict=verdict,
        text=text,
        repetitions=tuple(done),
        folder=asked.output,
        seed=asked.seed,
    )


_STOPPING = frozenset({Event.RESTART, Event.REPLACE, Event.STOP, Event.UPDATE})
"""Events that a platform runs a preStop hook at."""


def _verdict(done: list[Repetition], wanted: int, lacking: str | None) -> tuple[Proven, str]:
    if lacking:
        return Proven.INCONCLUSIVE, lacking
    valid = [each for each in done if each.ending is not Ending.INVALID]
    if len(valid) < min(VALID_MIN, wanted):
        invalid = [each.text for each in done if each.ending is Ending.INVALID]
        why = f": {invalid[0]}" if invalid else ""
        return Proven.INCONCLUSIVE, f"only {len(valid)} of {wanted} repetitions are valid{why}"
    violating = [each for each in valid if each.ending is Ending.VIOLATED]
    if violating:
        return Proven.VIOLATED, f"{violating[0].text} ({len(violating)} of {len(valid)})"
    return Proven.HELD, f"{valid[0].text} ({len(valid)} of {len(valid)})"


def _kept(proof: Proof) -> Proof:
    """Write `proof.json` beside the transcripts."""
    text = json.dumps(proof.to_json(), indent=2) + "\n"
    (proof.folder / "proof.json").write_text(text, encoding="utf-8")
    return proof


def chosen(
    roots: tuple[Root, ...], settings: Settings, *, root: str | None, service: str | None
) -> tuple[Root, Service]:
    """Return the root and the service that are meant: named, or the only one that is built here.

    Raises:
        TrialImpossible: there is none, or it is not clear which.
    """
    wanted = service or settings.service
    found = [
        (each, one)
        for each in roots
        if root is None or each.root == root
        for one in each.services
        if (one.name == wanted if wanted else one.image.dockerfile and not one.is_one_shot)
    ]
    if not found:
        names = sorted({one.name for each in roots for one in each.services})
        what = f"no service {wanted!r}" if wanted else "no service that is built here"
        msg = f"there is {what}; there are: {', '.join(names) or 'none'}"
        raise TrialImpossible(msg, services=names)
    if len({one.name for _, one in found}) > 1:
        names = sorted({one.name for _, one in found})
        msg = (
            f"which service? There are: {', '.join(names)}. "
            f"Name one: perdure inject --contract CODE --service {names[0]}"
        )
        raise TrialImpossible(msg, services=names)
    return found[0]
