"""Bugs that other systems had, and which of our tests would find each.

One table of what went wrong elsewhere with rewards, statistics, losses, KL, weights and mismatch,
and of the identities that aggregations must keep. The test here is that every named test exists:
a table of tests that were renamed would be worth nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

# What happened, and where: file::test, relative to tests/.
TABLE: dict[str, dict[str, list[str]]] = {
    "rewards": {
        "a math verifier scores everything 0 outside the main thread (verl 5635, trl 5281)": [
            "rewards/test_math.py::test_threads_agree_with_the_main_thread",
            "rollout/test_scoring.py::test_the_same_answer_from_many_threads",
        ],
        "an expression that never ends hangs the verifier in spite of its limit (Math-Verify 65)": [
            "rewards/test_math.py::test_power_tower_is_refused_not_computed",
            "rewards/test_math.py::test_hostile_text_is_judged_in_bounded_time",
        ],
        "one slow verification holds up the whole job (NeMo Gym 1354)": [
            "rollout/test_scoring.py::"
            "test_one_hung_check_more_than_workers_delays_the_rest_by_the_limit_only",
            "rollout/test_runner.py::test_a_slow_scorer_holds_up_its_own_domain_only",
        ],
        "a time-out that cannot stop a busy loop (verl 288)": [
            "rollout/test_scoring.py::test_a_hung_checker_is_killed_and_named",
            "rollout/test_scoring.py::test_the_deadline_holds_while_nobody_polls",
        ],
        "forked reward workers hang, orphans stay (verl 3290, rllm 433)": [
            "rollout/test_scoring.py::test_children_of_a_killed_checker_are_killed_too",
            "rollout/test_scoring.py::test_kill_9_of_the_parent_leaves_no_worker",
            "rollout/test_scoring.py::test_one_percent_hostile_answers_leave_nothing_behind",
        ],
        "a judge that fails is scored 0 (verl 4417)": [
            "rewards/test_review.py::test_a_judge_that_fails_is_no_verdict",
            "rollout/test_scoring.py::test_what_is_no_score_is_unscored",
            "trainers/test_credit.py::test_metrics_count_what_was_lost",
        ],
        "the environment dies and training goes on with empty replies (NeMo Gym 1351)": [
            "rollout/test_runner.py::test_a_broken_environment_is_unscored_never_zero",
            "rollout/test_scoring.py::"
            "test_a_failed_reply_is_typed_and_becomes_an_unscored_trajectory",
        ],
        "a missing or NaN part spoils every advantage under GDPO (ms-swift 8123)": [
            "algorithms/test_advantages.py::test_one_missing_part_leaves_every_other_sibling_alone",
            "trainers/test_batch_credit.py::"
            "test_a_missing_part_leaves_every_other_advantage_alone_under_gdpo",
        ],
        "a reward of None counts as 0 and biases its siblings (trl 5902)": [
            "algorithms/test_advantages.py::test_unscored_siblings_change_nothing_and_get_zero",
            "trainers/test_token_credit.py::test_an_unscored_sibling_changes_nothing_for_the_others",
            "trainers/test_credit.py::test_unscored_siblings_do_not_dilute_the_denominators",
        ],
        "a single scored sibling gives a NaN deviation (trl 5773)": [
            "algorithms/test_advantages.py::test_one_scored_sibling_or_none_gives_zeros",
            "trainers/test_token_credit.py::"
            "test_without_a_spread_a_group_baseline_gives_exactly_nothing",
        ],
        "the program under test writes its own verdict (OpenEnv 1200)": [
            "sandbox/test_sandbox_graders.py::test_no_tamper_program_is_rewarded",
            "sandbox/test_sandbox_graders.py::test_tampering_fails_at_every_level",
        ],
        "trivial programs time out when many run at once (verl 3478)": [
            "sandbox/test_sandbox_busy_machine.py::test_a_starved_job_gets_another_go",
            "sandbox/test_sandbox_soak.py::test_verdicts_do_not_flip_beside_a_loading_process",
            "rollout/test_scoring.py::test_the_clock_starts_with_execution_not_with_queueing",
        ],
    },
    "statistics": {
        "groups of other sizes shift every later group (AReaL 1419)": [
            "algorithms/test_advantages.py::"
            "test_groups_of_different_sizes_are_normalised_with_themselves_only",
            "trainers/test_token_credit.py::test_groups_of_different_sizes_are_credited_by_themselves",
        ],
        "a row left over is divided by eps (AReaL 1673)": [
            "algorithms/test_advantages.py::test_a_remainder_row_is_bounded",
            "algorithms/test_advantages.py::test_a_tiny_spread_is_damped_by_eps_not_blown_up",
        ],
        "dynamic sampling filters by the length-shaped reward (NeMo RL 2431)": [
            "algorithms/test_shaping.py::test_an_all_wrong_group_is_filtered_though_its_lengths_differ",
            "trainers/test_dynamic_sampling.py::test_the_filter_reads_raw_scores",
        ],
        "a filter by the mean keeps equal graded rewards (OpenRLHF 1270)": [
            "algorithms/test_advantages.py::test_constant_rewards_have_no_spread_whatever_they_are",
            "trainers/test_credit.py::test_groups_without_a_spread_have_no_signal",
        ],
        "rounds of sampling mix rows and rewards (NeMo RL 3794)": [
            "trainers/test_dynamic_sampling.py::test_rows_keep_their_own_rewards_over_the_rounds",
            "trainers/test_credit.py::test_each_row_keeps_its_own_reward",
        ],
        "returns are lost at tool observations (verl 7278)": [
            "algorithms/test_advantages.py::test_rewards_before_observations_are_not_lost",
            "trainers/test_token_credit.py::"
            "test_returns_cross_turns_and_keep_rewards_before_observations",
        ],
        "the KL of tool tokens enters the returns (slime 1370)": [
            "algorithms/test_advantages.py::test_masked_rewards_and_kl_change_nothing",
            "trainers/test_token_credit.py::test_observation_tokens_change_nothing",
        ],
        "a running norm looks for a key nobody writes; shapes broadcast (ROLL reward_norm)": [
            "trainers/test_batch_credit.py::test_normalisation_is_by_domain_and_its_state_goes_on",
            "algorithms/test_shaping.py::test_running_statistics_are_those_of_the_weighted_past",
        ],
    },
    "losses": {
        "each rank or micro-batch normalises by its own tokens (prime-rl 2358, trl 3021)": [
            "algorithms/test_aggregate.py::test_cuts_into_micro_batches_or_ranks_change_nothing",
            "trainers/test_gradients.py::test_micro_batches_and_shared_prompts_change_nothing",
            "trainers/test_ranks.py::test_two_ranks_give_one_ranks_gradients",
        ],
        "CISPO's offsets are taken for bounds, or the other way round (SkyRL 553, trl)": [
            "algorithms/test_losses.py::test_cispo_has_no_lower_bound_and_an_upper_one_of_five",
            "algorithms/test_catalogue.py::test_cispo_shows_its_bounds",
        ],
        "a micro-batch over the mini-batch gives NaN gradients (verl 2505)": [
            "test_preflight.py::test_mini_batch_over_the_batch",
            "test_preflight.py::test_micro_batch_over_the_update_is_noted",
        ],
        "NaN gradients end in an invalid distribution, adapters lost (Soup 342)": [
            "trainers/test_runs.py::test_a_non_finite_gradient_is_skipped_and_kept",
            "trainers/test_guarded_runs.py::"
            "test_gradients_that_stay_nan_end_the_stage_at_its_start",
            "trainers/test_guarded_runs.py::test_nan_weights_are_put_back",
        ],
        "unclipped ratios of stale samples collapse (tinker-cookbook 822)": [
            "algorithms/test_losses.py::test_clipping_holds_stale_updates_back",
        ],
    },
    "KL": {
        "exp overflows in k3 (trl 3015)": [
            "algorithms/test_kl.py::test_finite_at_any_log_ratio",
            "algorithms/test_kl.py::test_both_ends_are_finite",
            "algorithms/test_kl.py::test_far_from_the_reference_the_gradient_points_back",
            "algorithms/test_losses.py::test_finite_at_any_log_ratio",
        ],
        "an estimator whose gradient as a loss is another's": [
            "algorithms/test_kl.py::test_as_losses_k1_pulls_nowhere_and_k3_another_way",
            "algorithms/test_kl.py::test_expected_gradient_is_that_of_the_kl",
        ],
    },
    "weights and mismatch": {
        "the engine goes on with old weights, seen in log-probabilities only (trl 5312)": [
            "trainers/test_mismatch.py::test_weights_that_are_not_published_raise_the_alarm",
            "engines/test_fused.py::test_reads_the_weights_again",
            "engines/test_prefixes.py::test_new_weights_forget_what_was_cached",
        ],
        "weights are damaged on their way to the rollouts (SkyRL 1680)": [
            "rollout/test_published_weights.py::test_any_change_on_the_way_is_refused",
            "rollout/test_remote.py::test_weights_reach_running_and_later_workers",
        ],
        "the mismatch grows though nothing is learned (open-instruct 1473)": [
            "trainers/test_mismatch.py::test_without_learning_the_mismatch_stays_flat",
        ],
        "one engine is stable, another collapses (AReaL 1290)": [
            "engines/test_fused.py::test_equal_to_the_module",
            "engines/test_embedded.py::test_greedy_equals_transformers_generate",
        ],
        "on policy the ratio is not 1, as the micro-batches differ (verl 2996)": [
            "trainers/test_gradients.py::test_first_update_has_ratio_one_whatever_the_micro_batch",
            "algorithms/test_losses.py::test_without_a_proximal_stream_the_ratio_is_one",
            "trainers/test_reinforce.py::"
            "test_the_ratio_is_one_at_a_batchs_first_update_and_against_its_start_after",
        ],
        "tokens are decoded and encoded again, templates drop thinking (trl 5224)": [
            "models/test_chat.py::"
            "test_the_next_context_keeps_sampled_ids_that_decode_and_encode_otherwise",
            "models/test_chat.py::test_white_space_around_a_turn_breaks_no_context",
            "models/test_chat.py::test_a_template_that_strips_thinking_is_rendered_afresh",
            "rollout/test_runner.py::test_turns_continue_the_sampled_ids",
            "trainers/test_runs.py::test_trained_ids_are_the_sampled_ids",
        ],
    },
    "aggregation": {
        "token-mean is the sum over the tokens of all ranks and micro-batches": [
            "algorithms/test_aggregate.py::test_token_mean",
        ],
        "seq-mean-token-mean is the mean of sequence means": [
            "algorithms/test_aggregate.py::test_mean_of_sequence_means",
        ],
        "seq-mean-token-sum-norm divides by a constant length": [
            "algorithms/test_aggregate.py::test_sums_over_a_constant_length",
            "trainers/test_credit.py::"
            "test_lmax_is_each_requests_own_limit_whoever_else_is_in_the_batch",
        ],
        "prompt-mean is the mean over prompts of their token means": [
            "algorithms/test_aggregate.py::test_mean_of_prompt_means",
        ],
        "what is rejected stays in the denominators": [
            "algorithms/test_importance.py::test_rejected_tokens_do_not_inflate_the_others",
            "trainers/test_credit.py::test_truncated_completions_leave_the_loss_but_not_the_counts",
        ],
    },
}


@pytest.mark.parametrize("area", TABLE)
def test_every_named_test_exists(area: str) -> None:
    for what, names in TABLE[area].items():
        assert names, what
        for name in names:
            path, _, test = name.partition("::")
            text = (TESTS / path).read_text(encoding="utf-8")
            assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{what}: {name} is gone"
