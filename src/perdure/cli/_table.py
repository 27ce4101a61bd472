"""The commands by name: which module has them, so that only what is called is imported."""

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("_executing", "Start a run and execute it here."),
    "start": ("_executing", "Store a run for a worker to execute."),
    "worker": ("_working", "Execute runs until told to stop."),
    "ps": ("_reading", "List runs, or workers."),
    "show": ("_reading", "Show one run and what to do next."),
    "history": ("_reading", "Show a thread's runs, steps and forks."),
    "diff": ("_travel", "Compare checkpoints, threads or runs."),
    "fork": ("_travel", "Branch a thread at a checkpoint."),
    "replay": ("_travel", "Recompute a run; does the code still fit?"),
    "rollback": ("_travel", "Put a thread back to a checkpoint."),
    "approve": ("_deciding", "Answer a question, or list the open ones."),
    "signal": ("_deciding", "Send a run a signal."),
    "resolve": ("_deciding", "Decide an uncertain effect or parked run."),
    "cancel": ("_deciding", "Ask a run to cancel."),
    "prune": ("_retaining", "Erase what is not wanted any more."),
    "tag": ("_retaining", "Name a checkpoint, and keep it."),
    "untag": ("_retaining", "Remove such a name."),
    "migrate": ("_migrating", "Move runs of older versions to this one."),
    "erase": ("_erasing", "Erase a thread, or all about a subject."),
    "doctor": ("_checking", "Scan the store for runs that are stuck."),
    "check": ("_contracts", "Check a deployment and the code it starts."),
    "inject": ("_injecting", "Break a deployment, to prove a contract."),
}
"""Every command: the module that has the function of this name, what the list says about it."""

GROUPS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "audit": (
        "Prove what happened: verify, export, check.",
        {
            "audit_verify": ("_auditing", "Verify every hash and row of the store."),
            "audit_export": ("_auditing", "Write a file that proves it elsewhere."),
            "audit_check": ("_auditing", "Check such a file, without the store."),
            "audit_receipt": ("_erasing", "Check the receipt of an erasure."),
            "audit_keygen": ("_auditing", "Make a key pair to sign exports with."),
        },
    ),
    "limit": (
        "Limits that all workers obey together.",
        {
            "limit_set": ("_orders", "Set a limit, or replace it."),
            "limit_list": ("_orders", "List the limits, and how full they are."),
            "limit_remove": ("_orders", "Remove a limit."),
        },
    ),
    "schedule": (
        "Schedules: runs that start at due times.",
        {
            "schedule_add": ("_orders", "Add a schedule, or replace it."),
            "schedule_list": ("_orders", "List the schedules."),
            "schedule_remove": ("_orders", "Remove a schedule."),
            "schedule_pause": ("_orders", "Let a schedule rest."),
            "schedule_resume": ("_orders", "Let it go on."),
        },
    ),
    "quota": (
        "Quotas: how much room tenants may take.",
        {
            "quota_set": ("_retaining", "Set a quota, or replace it."),
            "quota_list": ("_retaining", "List the quotas, and how full they are."),
            "quota_drop": ("_retaining", "Remove a quota."),
        },
    ),
    "sandbox": (
        "Files of threads: list, collect, export.",
        {
            "sandbox_list": ("_sandboxes", "List the threads whose files are there."),
            "sandbox_show": ("_sandboxes", "Show a thread's snapshots of files."),
            "sandbox_collect": ("_sandboxes", "Remove snapshots that nothing needs."),
            "sandbox_export": ("_sandbox_export", "Export snapshots, for other hosts."),
            "sandbox_import": ("_sandbox_export", "Bring an exported snapshot here."),
            "sandbox_verify": ("_sandbox_export", "Is what was exported whole?"),
        },
    ),
    "keys": (
        "Keys of encrypted stores.",
        {
            "keys_new": ("_keys", "Make a key."),
            "keys_list": ("_keys", "List the keys that a store needs."),
            "keys_rotate": ("_keys", "Wrap the data keys with the newest key."),
            "keys_seal": ("_keys", "Encrypt a store that has data."),
        },
    ),
}
"""Every group of commands; a function `group_name` is the command `group name`."""
