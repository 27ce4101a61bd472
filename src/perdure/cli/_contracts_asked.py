"""`perdure check` once its command line is read; the checking is in the room `contracts`."""

import json
import sys
from pathlib import Path

import msgspec

from perdure.cli._contracts_output import FAIL_ON, FORMATS, failing, rendered, written
from perdure.cli._contracts_words import assumed, contract_of, contracts, one_of
from perdure.cli._output import note, say
from perdure.cli._text import clean_lines
from perdure.contracts.findings import Contract, Report
from perdure.contracts.report import explained, explained_json
from perdure.errors import CheckFailed, PerdureError, UsageError


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says, option by option."""

    folder: Path
    assume: tuple[str, ...] = ()
    only: str | None = None
    strict: bool = False
    output_format: str = "text"
    as_json: bool = False
    everything: bool = False
    output: Path | None = None
    fail_on: str = "violated"
    baseline: Path | None = None
    write_baseline: Path | None = None
    explain: str | None = None
    fix: bool = False
    yes: bool = False
    prove: str | None = None
    engine: str = "docker"


def perform(asked: Asked) -> int:
    """Do what is asked, and return the exit code.

    Raises:
        UsageError: an option has a value that it can't have.
        CheckImpossible: it could not be checked.
        CheckFailed: the check itself is at fault.
    """
    try:
        return _performed(asked)
    except (PerdureError, BrokenPipeError):
        raise
    except Exception as error:
        # Exit code 1 is that of a finding: whoever reads it must not take a crash for one.
        import traceback  # noqa: PLC0415  # when the check itself fails

        at = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(at.filename).name}:{at.lineno}"
        msg = f"the check itself failed, with {type(error).__name__} at {place}; nothing is judged"
        raise CheckFailed(msg, type=type(error).__name__, place=place) from error


def _performed(asked: Asked) -> int:
    one_of("--format", asked.output_format, FORMATS)
    one_of("--fail-on", asked.fail_on, FAIL_ON)
    _refuse_pairs(asked)
    if asked.explain is not None:
        return _explained(asked, contract_of("--explain", asked.explain))
    # Only here: an explanation needs none of it.
    from perdure.contracts.check import Settings, check, judged_report, opened  # noqa: PLC0415

    settings = Settings(
        assume=assumed(asked.assume), strict=asked.strict, only=contracts(asked.prove or asked.only)
    )
    if asked.fix:
        from perdure.cli._contracts_fix import mend  # noqa: PLC0415

        return mend(asked.folder, settings, is_told=asked.yes)
    if asked.prove is not None:
        return _proved(asked, check(asked.folder, settings))
    project = opened(asked.folder)
    report, judged = judged_report(project, settings)
    is_fixable = False
    if chosen_format(asked) == "text":
        from perdure.contracts.fix import may_mend  # noqa: PLC0415

        is_fixable = may_mend(project, judged)
    return _reported(asked, report, is_fixable=is_fixable)


def _explained(asked: Asked, contract: Contract) -> int:
    """Say what a contract means, as text or as JSON.

    Raises:
        UsageError: another format is asked for.
    """
    if chosen_format(asked) not in {"text", "json"}:
        msg = "--explain is text or JSON; leave out --format"
        raise UsageError(msg)
    is_json = chosen_format(asked) == "json"
    text = json.dumps(explained_json(contract), indent=1) if is_json else explained(contract)
    if asked.output is not None:
        written(asked.output, f"{text.rstrip()}\n")
    else:
        say(text.rstrip())
    return 0


def _refuse_pairs(asked: Asked) -> None:
    """Refuse options that say two things, or nothing without another one.

    Raises:
        UsageError: there are such options.
    """
    if asked.yes and not asked.fix:
        msg = "--yes is for --fix: perdure check --fix --yes"
        raise UsageError(msg)
    if asked.as_json and asked.output_format not in {"text", "json"}:
        msg = f"--json and --format {asked.output_format} are two formats; choose one"
        raise UsageError(msg)
    if asked.fix and (asked.as_json or asked.output_format != "text"):
        msg = "--fix shows edits as a diff, in no other format; leave out --json and --format"
        raise UsageError(msg)
    if asked.prove is not None and chosen_format(asked) not in {"text", "json"}:
        msg = "--prove tells its story as text or as JSON; leave out --format"
        raise UsageError(msg)


def chosen_format(asked: Asked) -> str:
    """Return the format that two options can ask for."""
    return "json" if asked.as_json else asked.output_format


def _proved(asked: Asked, report: Report) -> int:
    """Break the service; tell the check and the proof, in one document where it is JSON."""
    from perdure.cli._proving import EXIT, proof_of, told  # noqa: PLC0415
    from perdure.contracts.report import as_json  # noqa: PLC0415

    contract = contract_of("--prove", asked.prove or "")
    is_json = chosen_format(asked) == "json"
    if not is_json:
        known = read_known(asked)
        say(rendered(report, "text", everything=True, known=known, is_fixable=False).rstrip())
    proof = proof_of(asked.folder, contract, assume=assumed(asked.assume), engine=asked.engine)
    if is_json:
        # The proof is the verdict: it was executed. The check is what was expected.
        text = json.dumps({**as_json(report), "proofs": [proof.to_json()]}, indent=1) + "\n"
    else:
        text = told(proof) + "\n"
    if asked.output is not None:
        written(asked.output, text)
    else:
        sys.stdout.write(clean_lines(text))
    return EXIT[proof.verdict]


def read_known(asked: Asked) -> frozenset[str]:
    """Return the fingerprints of the baseline that is asked for; empty: none is."""
    from perdure.contracts.baseline import read_baseline  # noqa: PLC0415

    return read_baseline(asked.baseline) if asked.baseline is not None else frozenset()


def _reported(asked: Asked, report: Report, *, is_fixable: bool) -> int:
    from perdure.contracts.baseline import baseline_text, counted  # noqa: PLC0415

    if asked.write_baseline is not None:
        written(asked.write_baseline, baseline_text(report))
        known = sum(1 for _ in counted(report))
        note(f"wrote {known} findings to {asked.write_baseline}; leave them out with --baseline")
        return 0
    before = read_known(asked)
    text = rendered(
        report,
        chosen_format(asked),
        everything=asked.everything,
        known=before,
        fail_on=asked.fail_on,
        is_fixable=is_fixable,
        folder=asked.folder,
    )
    if asked.output is not None:
        written(asked.output, text)
    else:
        sys.stdout.write(text)
    return 1 if has_found(report, asked.fail_on, before) else 0


def has_found(report: Report, fail_on: str, known: frozenset[str]) -> bool:
    """Whether anything counts that is not known and not ignored."""
    from perdure.contracts.baseline import counted, fingerprint  # noqa: PLC0415

    return any(
        finding.verdict in failing(fail_on) and fingerprint(root, finding) not in known
        for root, finding in counted(report)
    )
