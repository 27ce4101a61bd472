"""The 39 attacks that a sandbox is judged by, what stops each, and the tests that show it.

`python -m tests.sandbox.attack_list` writes docs/sandbox-attacks.md.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.sandbox.attacks import ATTACKS

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/sandbox-attacks.md"
PROGRAM = "test_attacks::test_it_is_stopped"
"""Of the programs in `attacks`, which name the number: also in trees that stay or come back."""

SAME = "the same"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attack. `rootless`: how the driver of a user without rights differs."""

    number: int
    what: str
    by: str
    proofs: tuple[str, ...] = ()
    rootless: str = SAME


_NO_GROUP = "by process (`RLIMIT_*`), unless control groups are delegated"

LIST = [
    Attempt(1, "fork bomb", "`pids.max`, kill of the group",
            ("test_attacks::test_a_fork_bomb_ends_and_leaves_nothing",), "`RLIMIT_NPROC`"),
    Attempt(2, "memory bomb", "memory limit of the group",
            ("test_attacks::test_a_memory_bomb_is_killed",), _NO_GROUP),
    Attempt(3, "endless loop", "deadline held outside, `cpu.max`",
            ("test_attacks::test_a_loop_is_killed_at_the_deadline",),
            "deadline; no `cpu.max` without groups"),
    Attempt(4, "filling the disk", "a watcher of the room, `RLIMIT_FSIZE`",
            ("test_room::test_a_command_that_fills_the_disk_is_killed",
             "test_room::test_files_without_a_name_are_counted")),
    Attempt(5, "very many files, deep paths", "a watcher of the room, bounded walks",
            ("test_room::test_a_command_that_makes_very_many_files_is_killed",
             "test_room::test_folders_too_deep_to_be_looked_at_are_refused",
             "test_export::test_what_is_too_deep_is_refused_and_stays")),
    Attempt(6, "sparse file of 1 TB", "`RLIMIT_FSIZE`; exports count holes apart",
            ("test_attacks::test_a_file_has_a_largest_size",
             "test_export::test_everything_that_files_can_be_comes_back")),
    Attempt(7, "flood of output", "bounded reading, killed at a second limit",
            ("test_attacks::test_a_flood_is_cut_and_does_not_stop_what_prints_it",
             "test_live::test_a_flood_in_the_background_stops_nobody")),
    Attempt(8, "decompression bomb in an export", "sizes are checked before and while unpacking",
            ("test_export_attacks::test_a_bomb_is_not_unpacked",)),
    Attempt(9, "inherited descriptors", "all are closed but those named", (PROGRAM,)),
    Attempt(10, "names and links that lead out of an export",
            "own manifest, `openat2` beneath the target",
            ("test_export_attacks::test_a_manifest_cannot_say",
             "test_export_attacks::test_a_writer_stays_in_its_folder_whatever_lies_there",
             "test_attacks::test_a_link_out_of_the_sandbox_leads_into_it")),
    Attempt(11, "hard link to a file outside", "links only by number within the layer",
            ("test_export_attacks::test_a_manifest_cannot_say",)),
    Attempt(12, "exchange of links during an export", "only frozen layers are exported",
            ("test_export_attacks::test_a_writer_stays_in_its_folder_whatever_lies_there",)),
    Attempt(13, "set-user-id programs, file capabilities", "`no_new_privs`, `nosuid`; not exported",
            (PROGRAM, "test_export::test_everything_that_files_can_be_comes_back")),
    Attempt(14, "device nodes", "no `CAP_MKNOD`, `nodev`; refused by imports",
            (PROGRAM, "test_export_attacks::test_devices_of_a_damaged_layer_are_not_exported")),
    Attempt(15, "forged marks of the overlay",
            "`trusted.*` needs rights of the host; others mean nothing",
            (PROGRAM, "test_export_attacks::test_forged_marks_and_links_mean_nothing_elsewhere")),
    Attempt(16, "ptrace, memory of others, `pidfd_getfd`", "process namespace, filter", (PROGRAM,)),
    Attempt(17, "keyrings", "filter", (PROGRAM,)),
    Attempt(18, "mounts, `chroot`, `pivot_root`", "capabilities dropped, filter", (PROGRAM,)),
    Attempt(19, "new namespaces, `clone3`", "filter", (PROGRAM,)),
    Attempt(20, "bpf, perf, userfaultfd, io_uring, modules, kexec", "filter", (PROGRAM,)),
    Attempt(21, "`open_by_handle_at`", "no `CAP_DAC_READ_SEARCH`, filter", (PROGRAM,)),
    Attempt(22, "connections out, names", "network namespace without a way out but the proxy",
            (PROGRAM, "test_network::test_there_is_no_other_way_out")),
    Attempt(23, "metadata service, the host's loopback",
            "network namespace; the proxy refuses private addresses",
            (PROGRAM, "test_network::test_a_name_of_the_own_network_is_refused",
             "test_attacks::test_a_server_of_the_host_is_out_of_reach")),
    Attempt(24, "vsock, packet, crypto and netlink sockets", "filter of families", (PROGRAM,)),
    Attempt(25, "sockets of the host", "network and mount namespaces, Landlock",
            ("test_attacks::test_an_abstract_socket_of_the_host_is_out_of_reach",)),
    Attempt(26, "shared memory, message queues", "own `/dev/shm` and IPC namespace", (PROGRAM,)),
    Attempt(27, "signals to others", "process namespace, ids of each tenant",
            (PROGRAM, "test_attacks::test_two_tenants_have_other_ids"),
            "process namespace; one id for all"),
    Attempt(28, "daemons that outlive a command or a rollback", "process 1 ends: all end",
            ("test_attacks::test_a_daemon_does_not_outlive_the_command_and_is_named",
             "test_live::test_a_restore_ends_all_and_says_what_is_lost",
             "test_cells::test_what_forks_all_the_time_is_stopped_and_killed")),
    Attempt(29, "secrets in variables and command lines", "a clean environment",
            (PROGRAM, "test_attacks::test_a_secret_of_the_worker_is_not_in_the_environment")),
    Attempt(30, "tampering with an export",
            "sealed objects, a chain of manifests with digests of all",
            ("test_export_attacks::test_a_changed_byte_anywhere_is_found",
             "test_export_attacks::test_cut_grown_swapped_and_missing_objects_are_found")),
    Attempt(31, "an older export in place of the newest", "generations that only rise",
            ("test_export_attacks::test_an_older_snapshot_is_not_taken_for_another_one",)),
    Attempt(32, "files of another tenant, guesses by shared pieces",
            "folders, ids, keys and names of pieces of each tenant",
            ("test_export_attacks::test_another_tenants_objects_are_not_read",
             "test_export::test_tenants_share_no_names_and_cannot_read_each_other",
             "test_attacks::test_a_thread_does_not_see_the_files_of_another")),
    Attempt(33, "a live writer changes a frozen layer", "stopped, copied, and compared",
            ("test_live::test_files_of_a_live_tree_are_as_they_were_at_the_snapshot",
             "test_cells::test_what_is_stopped_does_nothing")),
    Attempt(34, "forged images of processes", "sealed by a key of this start of the host",
            ("test_kept::test_images_that_were_changed_are_refused",
             "test_kept::test_images_of_another_host_are_refused"),
            "not available: images need root"),
    Attempt(35, "Landlock is gone after a restore",
            "namespaces and filter are the wall; rights are compared",
            ("test_kept::test_it_is_stopped_in_a_tree_that_was_brought_back",
             "test_kept::test_what_was_brought_back_has_no_more_rights_than_before"),
            "not available: images need root"),
    Attempt(36, "`/proc` and kernel interfaces", "covered paths, no `/sys`", (PROGRAM,)),
    Attempt(37, "typing into a terminal", "no terminal, own session, filter", (PROGRAM,)),
    Attempt(38, "chance, identifiers and tokens come twice after a restore or fork",
            "NOT STOPPED: programs that were brought back go on with the memory they had; "
            "docs/sandbox.md says so", ()),
    Attempt(39, "links that mislead who builds the root (CVE-2026-87766)",
            "own builder, by descriptors; bubblewrap is not used",
            ("test_attacks::test_a_folder_that_the_root_needs_can_not_be_replaced_by_a_link",)),
]  # fmt: skip


HEAD = [
    "# What is tried against a sandbox",
    "",
    "Written by `python -m tests.sandbox.attack_list`. Tests are in `tests/sandbox`. Programs say",
    "whether they got through; they are executed in trees for one command, in trees that stay, and",
    "in trees that were brought back from images. `userns`: of a worker without rights, by the",
    "same tests. `DirectorySandboxes` executes no commands, so that there is nothing to stop.",
    "`plain` (`TrustedSandboxes`): none of these is stopped. Not available: no isolation.",
    "",
]


def document() -> str:
    """Return the page."""
    of_programs = dict.fromkeys(range(40), 0)
    for attack in ATTACKS:
        of_programs[attack.number] += 1
    lines = [
        *HEAD,
        f"{len(ATTACKS)} programs; {of_programs[0]} of them have no number in the list.",
        "",
        "| | attempt | stopped by (`ns`) | `userns` | programs | other tests |",
        "|---|---|---|---|---|---|",
    ]
    for each in LIST:
        others = [proof.split("::")[1] for proof in each.proofs if proof != PROGRAM]
        lines.append(
            f"| {each.number} | {each.what} | {each.by} | {each.rootless} | "
            f"{of_programs[each.number] or ''} | {'<br>'.join(f'`{name}`' for name in others)} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
