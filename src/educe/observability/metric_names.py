"""The metric names that the loops write and that views, alarms and plots look for.

Names are flat: ``STAGE/NAME`` overall, ``domain/DOMAIN/NAME`` for one domain (domains hold slashes
themselves, so NAME is what follows the last one), ``time/NAME_s`` for spans. Others may be recorded
freely; they are kept, plotted on demand and exported all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

DOMAIN_PREFIX = "domain/"

# name after the stage: what it is. Shares are in [0, 1].
OVERALL = {
    "loss": "loss of the update",
    "token_loss": "mean loss of trained tokens",
    "reward": "mean reward of scored samples (composed, normalised)",
    "score": "mean score of scored samples, chance-corrected",
    "screen_score": "mean score on screen tasks (never trained on)",
    "kl_k1": "KL to the reference, k1 estimator, nats a token",
    "kl_k3": "KL to the reference, k3 estimator, nats a token",
    "update_k1": "KL of the update itself (policy to proximal), k1, nats a token",
    "update_k3": "KL of the update itself, k3, nats a token",
    "entropy": "policy entropy, nats a token",
    "clip_low": "share of tokens clipped from below",
    "clip_high": "share of tokens clipped from above",
    "max_ratio": "largest policy/proximal ratio of a token",
    "mismatch": "mean |p_trainer - p_engine| of sampled tokens, same weights",
    "mismatch_k1": "KL(engine || trainer) of sampled tokens, k1, nats a token",
    "mismatch_k3": "the same, k3",
    "mismatch_ratio": "mean exp |log p_trainer - log p_engine|; above 1.01 weights may be stale",
    "effective_share": "what the correction leaves of the tokens: (sum w)^2 / (n sum w^2)",
    "values": "mean value of the states that action tokens were sampled in",
    "returns": "mean return that the values learn",
    "explained_variance": "1 - var(return - value) / var(return), before the update",
    "value_loss": "the value head's loss",
    "value_clip": "share of tokens whose value moved beyond the clip",
    "value_grad_norm": "gradient norm of the value head before clipping",
    "shaped": "mean reward that was trained on (score and shaping, normalised)",
    "greedy_reward": "mean score of greedy baselines",
    "temperature": "sampling temperature",
    "kl_coefficient": "weight of the reference KL in the next update, where it is steered",
    "entropy_coefficient": "weight of the entropy bonus in the next update, where it is steered",
    "grad_norm": "gradient norm before clipping",
    "learning_rate": "learning rate",
    "update_norm": "distance that the weights moved in one optimizer step (estimated)",
    "max_advantage": "largest advantage of a sample, without its sign",
    "reward_error": "standard error of the mean reward, over groups",
    "dropped": "groups that were sampled and left out of the batch",
    "eval_loss": "loss on held-out examples during training",
    "eval_best_loss": "lowest loss on held-out examples so far",
    "eval_accuracy": "share of held-out pairs whose chosen side has the higher implicit reward",
    "accuracy": "share of pairs whose chosen side has the higher implicit reward",
    "margin": "mean difference of implicit rewards, chosen minus rejected",
    "teacher_kl": "reverse KL to the teacher on what was sampled, nats a token",
    "skipped_examples": "examples left out so far because they did not fit the context",
    "completion_tokens": "mean completion length, tokens",
    "sampled_tokens": "completion tokens of the stage so far, those of dropped groups included",
    "rollouts": "completions sampled in the step, those of dropped groups included",
    "rollout_tokens": "completion tokens sampled in the step, those of dropped groups included",
    "planned_prompts": "prompts of the batch, as planned by rl.batch_tokens",
    "planned_tokens": "tokens that the batch was predicted to have (prompts once, completions)",
    "truncated": "share of completions cut at the token limit",
    "unsafe": "share of completions that the review calls unsafe",
    "task_score": "mean score before the review changed it",
    "trivial_right": "share of groups whose scores are all right",
    "trivial_wrong": "share of groups whose scores are all wrong",
    "lone_scored": "share of groups with a single scored sample, hence without a baseline",
    "correction": "mean weight of the proximal/behaviour correction",
    "rejected": "share of tokens that the correction took out of the loss",
    "unscored": "share of samples without a score",
    "rate_factor": "what the learning rate is multiplied by: the run's by its KL, a domain's by "
    "its KL and progress",
    "advantage_factor": "what a domain's advantages are multiplied by",
    "loss_factor": "what a domain's loss is multiplied by, from measured gradients",
    "watch_score": "score on the screen tasks of a look of the forgetting guard",
    "start_kl": "KL of the stage's start to the policy on kept completions, k3, nats a token",
    "skipped": "1 when the step was skipped because of a non-finite gradient",
}

# What a view shows first, in this order, when it is there.
HEADLINES = (
    "reward",
    "score",
    "screen_score",
    "accuracy",
    "margin",
    "teacher_kl",
    "eval_loss",
    "loss",
    "token_loss",
    "kl_k1",
    "kl_k3",
    "entropy",
    "completion_tokens",
    "truncated",
    "unscored",
    "grad_norm",
    "mismatch",
)


def domain_metric(domain: str, name: str) -> str:
    """Return the flat name of a domain's metric."""
    return f"{DOMAIN_PREFIX}{domain}/{name}"


def split_domain_metric(flat: str) -> tuple[str, str] | None:
    """Return (domain, name) of a domain's metric, None for any other metric."""
    if not flat.startswith(DOMAIN_PREFIX):
        return None
    domain, slash, name = flat[len(DOMAIN_PREFIX) :].rpartition("/")
    return (domain, name) if slash and domain and name else None


def without_domains_but(values: Mapping[str, float], kept: Collection[str]) -> dict[str, float]:
    """Return the overall metrics, and of the domains' only the ``kept`` names.

    Hundreds of domains with all their metrics would fill the memory of whoever keeps a history.
    """
    left = {}
    for flat, value in values.items():
        pair = split_domain_metric(flat)
        if pair is None or pair[1] in kept:
            left[flat] = value
    return left
