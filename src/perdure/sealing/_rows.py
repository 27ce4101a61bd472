"""Rows and changes as they are stored sealed, and back: which column is sealed, and as what.

What stays as it is: ids, names (tenant, thread, graph, node, effect, topic, schedule, worker),
states, counts, times, the class names of failures, and the hash chain.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.codec import is_erased
from perdure.model import (
    AskRow,
    EffectRow,
    Failure,
    FrameRow,
    Mail,
    MailKind,
    NewRun,
    Page,
    RunRow,
    ScheduleRow,
    Wait,
)
from perdure.sealing._seals import Record, Seals, sealed_of, text_of

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_texts = msgspec.msgpack.Decoder(tuple[str, str]).decode
_decode_request = msgspec.msgpack.Decoder(tuple[bytes, str, str]).decode
_decode_decision = msgspec.msgpack.Decoder(tuple[bool, bytes | None]).decode

_NIL = b"\xc0"

# -- runs ------------------------------------------------------------------------------------------


def sealed_run(run: NewRun, seals: Seals) -> NewRun:
    """Return a run to create."""
    named_by = run.start_key or run.run_id
    return replace(
        run,
        start_key=_maybe_name(run.start_key, "start key", seals),
        input_digest=seals.seal_name(run.input_digest, "input digest", named_by),
        first_body=seals.seal(run.first_body, "journal frame", (run.run_id, 1)),
        pages=sealed_pages(run.pages, seals),
        sealed_by=seals.key_id,
    )


def _maybe_name(name: str | None, column: str, seals: Seals) -> str | None:
    return None if name is None else seals.seal_name(name, column)


def unsealed_run(row: RunRow, seals: Seals) -> RunRow:
    """Return a run's row.

    Raises:
        SealBroken: a column is not what was sealed for it; names it.
    """
    key = None if row.start_key is None else seals.unseal_name(row.start_key, "start key")
    digest = seals.unseal_name(row.input_digest, "input digest", key or row.run_id)
    return replace(
        row,
        start_key=key,
        input_digest=digest,
        waits=tuple(unsealed_wait(wait, row.run_id, seals) for wait in row.waits),
        failure=unsealed_failure(row.failure, row.run_id, seals),
    )


def marked_run(row: RunRow, error: Exception) -> RunRow:
    """Return a run's row that can't be unsealed, as one that says so."""
    return replace(row, failure=Failure(type=type(error).__name__, message=str(error)))


def needs_own_key(row: RunRow) -> bool:
    """Return whether the row holds something that its thread's key sealed."""
    return row.failure is not None or any(wait.note for wait in row.waits)


def sealed_wait(wait: Wait, run_id: str, seals: Seals) -> Wait:
    """Return a wait with its note sealed."""
    if not wait.note:
        return wait
    return replace(wait, note=seals.seal_text(wait.note, "note of a wait", (run_id, wait.subject)))


def unsealed_wait(wait: Wait, run_id: str, seals: Seals) -> Wait:
    """Return a wait with its note."""
    if not wait.note:
        return wait
    return replace(
        wait, note=seals.unseal_text(wait.note, "note of a wait", (run_id, wait.subject))
    )


def sealed_failure(failure: Failure | None, record: Record, seals: Seals) -> Failure | None:
    """Return a failure whose message and trace are sealed; class and node stay readable."""
    if failure is None:
        return None
    texts = seals.seal(_encode((failure.message, failure.trace)), "failure", record)
    return replace(failure, message=text_of(texts), trace="")


def unsealed_failure(failure: Failure | None, record: Record, seals: Seals) -> Failure | None:
    """Return a failure with its message and trace."""
    if failure is None:
        return None
    texts = seals.unseal(sealed_of(failure.message), "failure", record)
    message, trace = _decode_texts(texts)
    return replace(failure, message=message, trace=trace)


def unsealed_frame(frame: FrameRow, seals: Seals) -> FrameRow:
    """Return a frame with its body; digests of what was erased are not sealed."""
    if is_erased(frame.body):
        return frame
    body = seals.unseal(frame.body, "journal frame", (frame.run_id, frame.first_seq))
    return replace(frame, body=body)


# -- effects ---------------------------------------------------------------------------------------


def sealed_effect(row: EffectRow, seals: Seals) -> EffectRow:
    """Return an effect; its key and the digest of its arguments are kept in the sealed request."""
    request = _encode((row.request_wire, row.key, row.args_digest))
    return replace(
        row,
        key="",
        business_key=_maybe_name(row.business_key, "business key", seals),
        args_digest="",
        request_wire=seals.seal(request, "effect request", row.effect_id),
        result_wire=sealed_result(row.effect_id, row.result_wire, seals),
        failure=sealed_failure(row.failure, row.effect_id, seals),
        decided_by=_maybe_text(row.decided_by, "effect decided by", row.effect_id, seals),
    )


def sealed_result(effect_id: str, result: bytes | None, seals: Seals) -> bytes | None:
    """Return the result of an effect."""
    return None if result is None else seals.seal(result, "effect result", effect_id)


def _maybe_text(text: str | None, column: str, record: str, seals: Seals) -> str | None:
    return None if text is None else seals.seal_text(text, column, record, exact=True)


def unsealed_effect(row: EffectRow, seals: Seals) -> EffectRow:
    """Return an effect.

    Raises:
        SealBroken: a column is not what was sealed for it; names it.
    """
    request = seals.unseal(row.request_wire, "effect request", row.effect_id)
    wire, key, digest = _decode_request(request)
    name, by, result = row.business_key, row.decided_by, row.result_wire
    return replace(
        row,
        key=key,
        business_key=None if name is None else seals.unseal_name(name, "business key"),
        args_digest=digest,
        request_wire=wire,
        result_wire=None
        if result is None
        else seals.unseal(result, "effect result", row.effect_id),
        failure=unsealed_failure(row.failure, row.effect_id, seals),
        decided_by=None
        if by is None
        else seals.unseal_text(by, "effect decided by", row.effect_id),
    )


# -- asks ------------------------------------------------------------------------------------------


def sealed_ask(row: AskRow, seals: Seals) -> AskRow:
    """Return an ask."""
    schema = row.schema
    value = row.value_wire
    return replace(
        row,
        question=seals.seal_text(row.question, "question", row.ask_id),
        schema=None if schema is None else {"sealed": _sealed_schema(row, schema, seals)},
        value_wire=None if value is None else sealed_answer(row, value, seals),
        answered_by=_maybe_text(row.answered_by, "answered by", row.ask_id, seals),
    )


def _sealed_schema(row: AskRow, schema: dict[str, Any], seals: Seals) -> bytes:
    return seals.seal(_encode(schema), "schema of an answer", row.ask_id)


def sealed_answer(row: AskRow, value_wire: bytes, seals: Seals) -> bytes:
    """Return the value of an answer: the same for the same, as an answer may come again."""
    return seals.seal(value_wire, "answer", row.ask_id, exact=True)


def sealed_answerer(row: AskRow, by: str, seals: Seals) -> str:
    """Return who answered."""
    return seals.seal_text(by, "answered by", row.ask_id, exact=True)


def unsealed_ask(row: AskRow, seals: Seals) -> AskRow:
    """Return an ask.

    Raises:
        SealBroken: a column is not what was sealed for it; names it.
    """
    value, by = row.value_wire, row.answered_by
    return replace(
        row,
        question=seals.unseal_text(row.question, "question", row.ask_id),
        schema=None if row.schema is None else _schema_of(row, seals),
        value_wire=None if value is None else seals.unseal(value, "answer", row.ask_id),
        answered_by=None if by is None else seals.unseal_text(by, "answered by", row.ask_id),
    )


def _schema_of(row: AskRow, seals: Seals) -> dict[str, Any]:
    stored = (row.schema or {}).get("sealed")
    sealed = stored if isinstance(stored, bytes) else b""
    schema: dict[str, Any] = _decode(seals.unseal(sealed, "schema of an answer", row.ask_id))
    return schema


# -- messages --------------------------------------------------------------------------------------


def _mail_record(mail: Mail) -> Record:
    return mail.run_id, mail.kind.value, mail.subject, mail.post_id, mail.at_us


def sealed_mail(mail: Mail, seals: Seals) -> Mail:
    """Return a message that is posted; of answers and decisions the store makes the messages."""
    record = _mail_record(mail)
    return replace(
        mail,
        body_wire=seals.seal(mail.body_wire, "message", record),
        sender=seals.seal_text(mail.sender, "sender of a message", record),
    )


def unsealed_mail(mail: Mail, seals: Seals) -> Mail:
    """Return a message.

    Raises:
        SealBroken: a column is not what was sealed for it; names it.
    """
    if mail.kind is MailKind.ANSWER:
        body = seals.unseal(mail.body_wire, "answer", mail.subject)
        by = seals.unseal_text(mail.sender, "answered by", mail.subject)
    elif mail.kind is MailKind.DECISION:
        happened, result = _decode_decision(mail.body_wire)
        if result is not None:
            result = seals.unseal(result, "decided result", mail.subject)
        body = _encode((happened, result))
        by = seals.unseal_text(mail.sender, "effect decided by", mail.subject)
    elif mail.kind is MailKind.CANCEL and (mail.body_wire, mail.sender) == (_NIL, ""):
        return mail  # made by the store, of a start that cancels: it says nothing more
    else:
        record = _mail_record(mail)
        body = seals.unseal(mail.body_wire, "message", record)
        by = seals.unseal_text(mail.sender, "sender of a message", record)
    return replace(mail, body_wire=body, sender=by)


def sealed_decision(effect_id: str, result: bytes | None, seals: Seals) -> bytes | None:
    """Return the result that a decision says."""
    if result is None:
        return None
    return seals.seal(result, "decided result", effect_id, exact=True)


def sealed_decider(effect_id: str, by: str, seals: Seals) -> str:
    """Return who decided."""
    return seals.seal_text(by, "effect decided by", effect_id, exact=True)


# -- what belongs to a tenant ----------------------------------------------------------------------


def sealed_pages(pages: tuple[Page, ...], seals: Seals) -> tuple[Page, ...]:
    """Return pages under names that tell nothing of what is in them."""
    return tuple(_sealed_page(page, seals) for page in pages)


def _sealed_page(page: Page, seals: Seals) -> Page:
    name = seals.page_name(page.hash)
    return Page(name, seals.seal_shared(page.body, "page", name.hex(), exact=False))


def unsealed_page(name: bytes, body: bytes, seals: Seals) -> bytes:
    """Return the body of a page that is stored under a name."""
    return seals.unseal_shared(body, "page", name.hex())


def sealed_schedule(row: ScheduleRow, seals: Seals) -> ScheduleRow:
    """Return a schedule: the same for the same, as a store compares them."""
    return replace(
        row,
        input_wire=seals.seal_shared(row.input_wire, "input of schedule", row.name, exact=True),
        input_digest=seals.seal_name(row.input_digest, "input digest of schedule", row.name),
        problem=seals.seal_name(row.problem, "problem of schedule", row.name),
    )


def unsealed_schedule(row: ScheduleRow, seals: Seals) -> ScheduleRow:
    """Return a schedule.

    Raises:
        SealBroken: a column is not what was sealed for it; names it.
    """
    return replace(
        row,
        input_wire=seals.unseal_shared(row.input_wire, "input of schedule", row.name),
        input_digest=seals.unseal_name(row.input_digest, "input digest of schedule", row.name),
        problem=seals.unseal_name(row.problem, "problem of schedule", row.name),
    )
