"""What goes to the functions of `sql/0003_writes.sql`: JSON, and one blob for all byte strings."""

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.model import (
    Append,
    AskClosed,
    AskPut,
    Change,
    EffectPut,
    EffectState,
    Mail,
    MailPosted,
    MailTaken,
    NewRun,
    Page,
    PagesPut,
    RunEnded,
    RunProgressed,
    RunReleased,
    RunSpawned,
    ThreadBased,
    Wait,
    WaitKind,
)
from perdure.store import _rules as rules
from perdure.store._rows import wire_of, wire_of_waits

_encode = msgspec.json.Encoder().encode

_ESCAPE, _ESCAPED_NUL = "\ue000", "\ue000\ue001"
"""PostgreSQL's text can't hold the character NUL: a private one stands for it, and for itself."""


def text_in(text: str) -> str:
    """Return free text as the tables hold it."""
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, _ESCAPE * 2).replace("\0", _ESCAPED_NUL)


def text_out(text: Any) -> Any:
    """Return free text (or None) as it was given to `text_in`."""
    if text is None or _ESCAPE not in text:
        return text
    pieces = text.split(_ESCAPE * 2)
    return _ESCAPE.join(piece.replace(_ESCAPED_NUL, "\0") for piece in pieces)


def as_json(value: Any) -> str:
    """Return JSON text."""
    return _encode(value).decode()


class Blob:
    """The byte strings of one call, one after the other."""

    def __init__(self) -> None:
        """Start empty."""
        self._pieces: list[bytes] = []
        self._size = 0

    def put(self, *pieces: bytes) -> tuple[int, int]:
        """Add bytes; return their offset and length."""
        at = self._size
        self._pieces.extend(pieces)
        self._size += sum(map(len, pieces))
        return at, self._size - at

    def maybe(self, piece: bytes | None) -> tuple[int, int] | None:
        """Add bytes, unless there are none."""
        return None if piece is None else self.put(piece)

    def bytes(self) -> bytes:
        """Return all of them."""
        return b"".join(self._pieces)


def run_wire(run: NewRun, blob: Blob) -> dict[str, Any]:
    """Return a run to start or spawn."""
    is_due = run.ready_at_us <= run.created_at_us
    return {
        "run_id": run.run_id,
        "tenant": run.tenant,
        "thread": run.thread,
        "graph": run.graph,
        "version": run.version,
        "priority": run.priority,
        "start_key": run.start_key,
        "input_digest": run.input_digest,
        "on_busy": run.on_busy.value,
        "ready_at_us": run.ready_at_us,
        "created_at_us": run.created_at_us,
        "first_body": blob.put(run.first_body),
        "first_hash": blob.put(run.first_hash),
        "parent": run.parent,
        "parent_call": run.parent_call,
        "take_for": run.take_for,
        "lease_until_us": run.lease_until_us,
        "subject": run.subject,
        "origin": run.origin,
        "origin_erased": run.origin_erased,
        "sealed_by": run.sealed_by,
        "queue_waits": blob.maybe(wire_of_waits(rules.queue_waits(run, is_due=is_due))),
    }


def mail_wire(mail: Mail, blob: Blob) -> dict[str, Any]:
    """Return a message."""
    return {
        "run_id": mail.run_id,
        "kind": mail.kind.value,
        "subject": text_in(mail.subject),
        "body_wire": blob.put(mail.body_wire),
        "sender": text_in(mail.sender),
        "at_us": mail.at_us,
        "post_id": mail.post_id,
    }


def pages_wire(pages: Sequence[Page], blob: Blob) -> list[Any]:
    """Return pages, in the order in which all writers lock them."""
    ordered = sorted(pages, key=lambda page: page.hash)
    return [(blob.put(page.hash), blob.put(page.body)) for page in ordered]


def _queued_until(waits: Sequence[Wait]) -> int | None:
    return max((wait.due_us for wait in waits if wait.due_us is not None), default=None)


def _released(change: RunReleased, blob: Blob) -> dict[str, Any]:
    is_queued = any(wait.kind is WaitKind.THREAD for wait in change.waits)
    return {
        "type": "released",
        "status": change.status.value,
        "waits": blob.maybe(wire_of_waits(change.waits)),
        "is_queued": is_queued,
        "queued_until_us": _queued_until(change.waits) if is_queued else None,
        "ready_at_us": change.ready_at_us,
        "failure": blob.maybe(wire_of(change.failure)),
        "checkpoint": change.checkpoint,
        "mail_seen": change.mail_seen,
        "keep_claims": change.keep_claims,
        "version": change.version,
    }


def _ended(change: RunEnded, blob: Blob) -> dict[str, Any]:
    mail = change.mail_to_parent
    return {
        "type": "ended",
        "status": change.status.value,
        "at_us": change.at_us,
        "failure": blob.maybe(wire_of(change.failure)),
        "checkpoint": change.checkpoint,
        "mail_to_parent": None if mail is None else mail_wire(mail, blob),
    }


def _effect(index: int, change: EffectPut, blob: Blob) -> list[Any]:
    """Return the effect as `commit_frames` takes it; the order is that function's."""
    row = change.row
    return [
        index, row.thread, row.effect_id, row.node, row.name, row.kind.value, row.state.value,
        row.key, row.business_key, row.args_digest, blob.put(row.request_wire),
        blob.maybe(row.result_wire), row.attempt, blob.maybe(wire_of(row.failure)),
        row.intended_at_us, row.changed_at_us, row.decision,
        None if row.decided_by is None else text_in(row.decided_by),
        change.reopens or row.state is EffectState.INTENDED,
    ]  # fmt: skip  # one line per row reads best


_REOPENS = 18
"""Place of `reopens` in what `_effect` returns."""


def _ask(change: AskPut, blob: Blob) -> dict[str, Any]:
    row = change.row
    return {
        "type": "ask",
        "ask_id": row.ask_id,
        "node": row.node,
        "question": text_in(row.question),
        "schema": blob.maybe(wire_of(row.schema)),
        "state": row.state.value,
        "asked_at_us": row.asked_at_us,
        "expires_at_us": row.expires_at_us,
        "value_wire": blob.maybe(row.value_wire),
        "answered_by": None if row.answered_by is None else text_in(row.answered_by),
        "answered_at_us": row.answered_at_us,
    }


_CHANGES: dict[type, Any] = {
    RunReleased: _released,
    RunEnded: _ended,
    AskPut: _ask,
    RunProgressed: lambda change, _blob: {
        "type": "progressed",
        "lease_until_us": change.lease_until_us,
    },
    AskClosed: lambda change, _blob: {
        "type": "ask_closed",
        "ask_id": change.ask_id,
        "state": change.state.value,
        "at_us": change.at_us,
    },
    MailTaken: lambda change, _blob: {"type": "mail_taken", "mail_ids": change.mail_ids},
    MailPosted: lambda change, blob: {"type": "mail_posted", "mail": mail_wire(change.mail, blob)},
    RunSpawned: lambda change, blob: {
        "type": "spawned",
        "run": run_wire(rules.spawned(change.run), blob),
    },
    ThreadBased: lambda change, _blob: {
        "type": "based",
        "seq": change.seq,
        "made_at": change.made_at,
    },
    PagesPut: lambda change, blob: {"type": "pages", "pages": pages_wire(change.pages, blob)},
}

if {*_CHANGES, EffectPut} != set(Change.__args__):
    msg = "the PostgreSQL store does not write every change of the model"
    raise TypeError(msg)


class AppendWire:
    """The parameters of `append` for appends of different runs."""

    def __init__(self, batch: Sequence[Append]) -> None:
        """Encode the batch."""
        self._blob = Blob()
        self._keys: list[tuple[int, str, str, str]] = []
        self._changes: list[tuple[int, dict[str, Any]]] = []
        self._effects: dict[str, list[Any]] = {}
        self._threads: set[tuple[str, str]] = set()
        self._runs: set[str] = set()
        items = [self._item(index, item) for index, item in enumerate(batch)]
        if self._threads or self._runs:
            self._runs.update(item.run_id for item in batch)
        self.params = (
            as_json(items),
            self._blob.bytes(),
            self._locks(),
            as_json(self._keys) if self._keys else None,
            as_json(list(self._effects.values())) if self._effects else None,
            as_json(self._changes) if self._changes else None,
        )

    def encoded(self) -> list[bytes | None]:
        """Return the parameters as they are sent: text, or bytes as they are."""
        return [item.encode() if isinstance(item, str) else item for item in self.params]

    def _item(self, index: int, item: Append) -> tuple[Any, ...]:
        changes = item.changes
        lease_until_us: int | None = None
        if changes and type(changes[0]) is RunProgressed:
            lease_until_us, changes = changes[0].lease_until_us, changes[1:]
        for change in changes:
            if type(change) is RunSpawned and change.run.pages:
                put = PagesPut(pages=change.run.pages)
                self._changes.append((index, _CHANGES[PagesPut](put, self._blob)))
            if type(change) is EffectPut:
                self._put_effect(index, change)
            else:
                self._changes.append((index, _CHANGES[type(change)](change, self._blob)))
            self._note(index, item, change)
        piece = self._blob.put(item.prev_hash, item.hash, item.body)
        return (
            item.tenant, item.run_id, item.token, item.first_seq, item.count, item.at_us,
            lease_until_us, piece,
        )  # fmt: skip  # one line per row reads best

    def _put_effect(self, index: int, change: EffectPut) -> None:
        """Note the effect; of several changes to one the last counts, and reopens if one does."""
        effect = _effect(index, change, self._blob)
        before = self._effects.pop(change.row.effect_id, None)
        effect[_REOPENS] = effect[_REOPENS] or (before is not None and before[_REOPENS])
        self._effects[change.row.effect_id] = effect

    def _note(self, index: int, item: Append, change: Change) -> None:
        """Note what the change will lock beside its run, and the business key that it wants."""
        if isinstance(change, EffectPut) and change.row.business_key is not None:
            row, key = change.row, change.row.business_key
            self._keys.append((index, row.tenant, key, row.effect_id))
        elif isinstance(change, RunEnded):
            self._threads.add((item.tenant, item.thread))
            if change.mail_to_parent is not None:
                self._runs.add(change.mail_to_parent.run_id)
        elif isinstance(change, ThreadBased) or (
            isinstance(change, RunReleased) and change.checkpoint
        ):
            self._threads.add((item.tenant, item.thread))
        elif isinstance(change, MailPosted):
            self._runs.add(change.mail.run_id)
        elif isinstance(change, RunSpawned):
            self._threads.add((change.run.tenant, change.run.thread))

    def _locks(self) -> str | None:
        if not self._threads and not self._runs:
            return None
        threads = [{"tenant": tenant, "thread": name} for tenant, name in sorted(self._threads)]
        return as_json({"threads": threads, "runs": sorted(self._runs)})
