"""The attacks, by name: programs of this folder, and tests of the rooms that are attacks already."""

from __future__ import annotations

from tests.attacks.attack import Attack

READING = "pipelines/corpus/test_reading_hostile.py"


def by_tests(name: str, promise: str, *tests: str) -> Attack:
    return Attack(name, promise, tests=tests)


LISTED = (
    Attack(
        "current-folder", "no code of the folder that you stand in is run", "current_folder.current_folder"
    ),
    Attack("terminal", "nothing that a terminal obeys is written to it", "terminal.terminal"),
    Attack("kills", "a killed process loses nothing that was acknowledged", "kills.kills", "kills"),
    Attack(
        "full-disks", "a disk that fills loses nothing and is named in one line", "kills.full_disks", "kills"
    ),
    Attack(
        "fuzz-documents",
        "any file is read, or skipped or refused with a reason",
        "fuzz_documents.fuzz_documents",
        "minutes",
    ),
    Attack(
        "fuzz-checkpoints",
        "a damaged checkpoint is refused in one line",
        "fuzz_checkpoints.fuzz_checkpoints",
        "minutes",
    ),
    Attack(
        "fuzz-servers",
        "whatever a server answers is taken or refused in one line",
        "fuzz_servers.fuzz_servers",
        "minutes",
    ),
    Attack(
        "fuzz-dashboard",
        "whatever a browser sends is answered, and never by an error",
        "fuzz_dashboard.fuzz_dashboard",
        "minutes",
    ),
    Attack(
        "load",
        "ten readers at once are answered, a click is not held up by heavy pages, and memory does not grow",
        "load.load",
        "minutes",
    ),
    Attack(
        "passwords",
        "a password cannot be guessed, from however many connections, and none is empty",
        "passwords.passwords",
        "minutes",
    ),
    Attack(
        "temporary-folder",
        "nothing is written through a link or a folder of another user where Gradio keeps files",
        "temporary_folder.temporary_folder",
    ),
    Attack(
        "first-inits",
        "several processes that open an empty database at once lose nothing",
        "first_inits.first_inits",
        "minutes",
    ),
    by_tests(
        "slow-requests",
        "bodies without end or of no known length, answers not taken and open connections hold up no one",
        "test_a_long_body_is_refused_before_it_is_read",
        "test_a_body_of_unknown_length_is_refused",
        "test_a_body_that_does_not_arrive_is_given_up",
        "test_a_connection_that_sends_no_whole_request_is_closed",
        "test_an_answer_that_is_not_taken_is_given_up_and_one_that_is_taken_slowly_is_not",
        "test_of_too_many_connections_the_oldest_that_waits_is_closed",
    ),
    by_tests(
        "special-files",
        "a pipe, socket, device or folder in place of a model's file is refused unread",
        "test_what_is_no_regular_file_is_refused_unread",
        "test_a_shard_that_is_a_pipe_is_refused_unread",
    ),
    by_tests(
        "rings",
        "adapters in a ring, and headers and manifests of any depth, are refused in one line",
        "test_adapters_in_a_ring_are_refused",
        "test_a_header_of_any_depth_is_refused",
        "test_a_manifest_of_any_depth_is_refused_in_one_line",
    ),
    by_tests(
        "scripts",
        "documents, answers and names are shown as text, never as markup",
        "dashboard/test_markup.py",
        "dashboard/test_report.py",
    ),
    by_tests(
        "hosts",
        "the dashboard answers its own address only, and nothing but its pages",
        "dashboard/test_request_guard.py",
    ),
    by_tests("documents", "bombs, links and broken files cost one row, in bounded memory", READING),
    by_tests(
        "parsers",
        "a process that parses documents changes no file and opens no connection, where Linux has Landlock",
        "recovery/test_landlock.py",
    ),
    by_tests(
        "models",
        "nothing is unpickled, and no code that comes with a model is run",
        "test_pickled_weights_are_never_read",
        "test_code_that_comes_with_a_model_is_not_run",
        "test_code_of_a_model_is_run_only_for_a_home_that_was_named",
        "test_no_pickle_is_written",
    ),
    by_tests(
        "templates",
        "a chat template that loops, fills the memory or writes without end is refused by the model's name",
        "recovery/models/test_template_limits.py",
    ),
    by_tests("sql", "a query only reads, and ends", "db/test_readonly.py"),
    by_tests(
        "keys",
        "no key is recorded, shown, exported or sent to another host",
        "db/test_redact.py",
        "pipelines/cli/test_redaction.py",
        "test_no_format_and_no_command_writes_a_key",
        "test_a_password_never_stands_in_a_message",
        "test_an_error_is_stored_without_keys",
    ),
    by_tests(
        "formulas",
        "no cell of an export is taken for a formula where commas separate the cells",
        "test_a_formula_does_not_reach_a_spreadsheet",
        "test_a_formula_behind_what_a_spreadsheet_skips_is_text",
    ),
    by_tests(
        "servers",
        "servers that drip, flood, redirect and lie cost one line, within the deadline",
        "recovery/engines/test_json_client.py",
        "recovery/engines/test_key_guard.py",
    ),
    by_tests(
        "swapped-inputs",
        "a cycle is not resumed, and nothing paired, over other questions",
        "test_a_cycle_whose_inputs_were_swapped_is_refused_by_name",
        "test_answers_to_other_questions_are_not_paired",
    ),
    by_tests(
        "foreign-homes",
        "a home that lies among the documents or is another's is not obeyed, and one that was only found "
        "runs no code and sends nothing to another machine",
        "test_a_home_that_lies_inside_the_documents_is_used_only_by_name",
        "test_a_home_of_another_user_is_used_only_by_name",
        "pipelines/config/test_home_settings.py",
        "test_what_a_new_home_holds_is_its_owners_alone",
    ),
    by_tests(
        "hostile-ids",
        "no id or shape that does not fit reaches the C kernels, which are clean under sanitizers",
        "recovery/cpu/test_hostile_ids.py",
        "recovery/cpu/test_sanitizers.py",
    ),
    by_tests(
        "long-texts", "no text takes more than time in proportion", "test_looping_answers_take_bounded_time"
    ),
    by_tests(
        "clocks",
        "a clock set back changes no order of runs, ends none before its start and hides nothing",
        "test_a_clock_set_back_does_not_change_the_order_of_runs",
        "test_a_clock_set_back_hides_neither_a_dead_run_nor_a_change",
        "test_nothing_ends_before_its_start_when_the_clock_is_set_back",
        "test_a_clock_set_back_does_not_fold_the_time_axis",
    ),
)
ATTACKS = {attack.name: attack for attack in LISTED}
