"""Statistics of evaluations, usable alone: arrays in, estimates and decisions out.

>>> from educe.evaluation.statistics import wilson
>>> round(wilson(29, 30).low, 3)
0.833
"""

from __future__ import annotations

from educe.evaluation.statistics.agreement import (
    Agreement,
    agreement_estimate,
    cohen_kappa,
    fleiss_kappa,
    gwet_ac1,
    krippendorff_alpha,
    raw_agreement,
)
from educe.evaluation.statistics.corpus import (
    CORPUS_METRICS,
    REDUCERS,
    auroc,
    corpus_estimate,
    f1_macro,
    f1_micro,
    recall_at_false_positive_rate,
    reduce_samples,
)
from educe.evaluation.statistics.estimates import (
    Estimate,
    VarianceSplit,
    beta_posterior,
    chance_corrected,
    clopper_pearson,
    clustered_standard_error,
    mean_estimate,
    standard_error,
    variance_split,
    wilson,
    zero_failure_bound,
)
from educe.evaluation.statistics.judges import (
    prediction_powered_mean,
    rogan_gladen,
    swap_consistency,
    win_rate,
)
from educe.evaluation.statistics.macro import (
    macro_average,
    macro_chance_corrected,
    macro_difference,
)
from educe.evaluation.statistics.multiple import (
    benjamini_hochberg,
    benjamini_yekutieli,
    bonferroni,
    e_benjamini_hochberg,
    holm,
)
from educe.evaluation.statistics.online import (
    Assignment,
    OffPolicy,
    assign_arm,
    cuped,
    inverse_propensity,
    ratio_estimate,
    sample_ratio_mismatch,
)
from educe.evaluation.statistics.paired import (
    McNemar,
    NonInferiority,
    PairedDifference,
    mcnemar,
    non_inferiority,
    paired_difference,
    paired_t_interval,
    sign_flip_test,
)
from educe.evaluation.statistics.power import (
    binary_detectable_effect,
    binary_sample_size,
    minimum_detectable_effect,
    paired_power,
    paired_sample_size,
)
from educe.evaluation.statistics.repeated import (
    Stability,
    graded_pass_at_k,
    majority_at_k,
    mean_graded_pass_at_k,
    pass_at_k,
    pass_hat_k,
    stability,
)
from educe.evaluation.statistics.resampling import bootstrap_mean, bootstrap_statistic
from educe.evaluation.statistics.scores import score_estimate
from educe.evaluation.statistics.sequential import (
    Look,
    SequentialComparison,
    asymptotic_half_width,
    betting_sequence,
    empirical_bernstein_sequence,
    mixture_log_ratio,
    tightest_rho,
)
from educe.evaluation.statistics.shrinkage import shrunk_rates

__all__ = [
    "CORPUS_METRICS",
    "REDUCERS",
    "Agreement",
    "Assignment",
    "Estimate",
    "Look",
    "McNemar",
    "NonInferiority",
    "OffPolicy",
    "PairedDifference",
    "SequentialComparison",
    "Stability",
    "VarianceSplit",
    "agreement_estimate",
    "assign_arm",
    "asymptotic_half_width",
    "auroc",
    "benjamini_hochberg",
    "benjamini_yekutieli",
    "beta_posterior",
    "betting_sequence",
    "binary_detectable_effect",
    "binary_sample_size",
    "bonferroni",
    "bootstrap_mean",
    "bootstrap_statistic",
    "chance_corrected",
    "clopper_pearson",
    "clustered_standard_error",
    "cohen_kappa",
    "corpus_estimate",
    "cuped",
    "e_benjamini_hochberg",
    "empirical_bernstein_sequence",
    "f1_macro",
    "f1_micro",
    "fleiss_kappa",
    "graded_pass_at_k",
    "gwet_ac1",
    "holm",
    "inverse_propensity",
    "krippendorff_alpha",
    "macro_average",
    "macro_chance_corrected",
    "macro_difference",
    "majority_at_k",
    "mcnemar",
    "mean_estimate",
    "mean_graded_pass_at_k",
    "minimum_detectable_effect",
    "mixture_log_ratio",
    "non_inferiority",
    "paired_difference",
    "paired_power",
    "paired_sample_size",
    "paired_t_interval",
    "pass_at_k",
    "pass_hat_k",
    "prediction_powered_mean",
    "ratio_estimate",
    "raw_agreement",
    "recall_at_false_positive_rate",
    "reduce_samples",
    "rogan_gladen",
    "sample_ratio_mismatch",
    "score_estimate",
    "shrunk_rates",
    "sign_flip_test",
    "stability",
    "standard_error",
    "swap_consistency",
    "tightest_rho",
    "variance_split",
    "wilson",
    "win_rate",
    "zero_failure_bound",
]
