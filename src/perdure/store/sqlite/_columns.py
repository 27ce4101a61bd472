"""The columns and joins of what SQLite keeps apart from the runs, in the order of `_rows`."""

EFFECT_COLUMNS = (
    "e.effect_id, r.run_id, e.tenant, r.thread, e.node, e.name, e.kind, e.state, e.key, "
    "e.business_key, e.args_digest, e.request_wire, e.result_wire, e.attempt, e.failure, "
    "e.intended_at_us, e.changed_at_us, e.decision, e.decided_by"
)
EFFECTS_FROM = "perdure_effects AS e JOIN perdure_runs AS r ON r.run_no = e.run_no"

ASK_COLUMNS = (
    "a.ask_id, r.run_id, a.tenant, r.thread, a.node, a.question, a.schema, a.state, a.asked_at_us, "
    "a.expires_at_us, a.value_wire, a.answered_by, a.answered_at_us"
)
ASKS_FROM = "perdure_asks AS a JOIN perdure_runs AS r ON r.run_no = a.run_no"
