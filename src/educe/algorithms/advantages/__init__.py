"""Credit: within a group, over a batch, and token by token. Torch-free.

``ADVANTAGES`` names what a bundle may use for one advantage a completion from its group's scores.
"""

from educe.algorithms.advantages.batch import (
    RoleBaselines,
    centred_then_whitened,
    gdpo,
    multi_reward,
    whitened,
)
from educe.algorithms.advantages.group import (
    ADVANTAGES,
    Advantage,
    best_of_k,
    best_over_second,
    group_centred,
    group_normalised,
    has_spread,
    leave_one_out,
    length_weighted_baseline,
    mean_scaled,
    over_greedy,
    score,
)
from educe.algorithms.advantages.returns import (
    discounted_returns,
    explained_variance,
    generalised_advantages,
    kl_values,
    length_adaptive_lambda,
    penalised_score,
    process_rewards,
    reinforce_plus_plus,
    token_rewards,
    with_kl_penalty,
)

__all__ = [
    "ADVANTAGES",
    "Advantage",
    "RoleBaselines",
    "best_of_k",
    "best_over_second",
    "centred_then_whitened",
    "discounted_returns",
    "explained_variance",
    "gdpo",
    "generalised_advantages",
    "group_centred",
    "group_normalised",
    "has_spread",
    "kl_values",
    "leave_one_out",
    "length_adaptive_lambda",
    "length_weighted_baseline",
    "mean_scaled",
    "multi_reward",
    "over_greedy",
    "penalised_score",
    "process_rewards",
    "reinforce_plus_plus",
    "score",
    "token_rewards",
    "whitened",
    "with_kl_penalty",
]
