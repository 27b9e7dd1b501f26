"""How many items a difference needs, and which difference a given number of items could show."""

from __future__ import annotations

import math

from scipy import special

from educe.evaluation.statistics.estimates import normal_quantile


def _quantiles(alpha: float, power: float) -> float:
    if not 0 < alpha < 1 or not 0 < power < 1:
        raise ValueError(f"alpha and power must lie in (0, 1), got {alpha} and {power}")
    return normal_quantile(1 - alpha / 2) + normal_quantile(power)


def paired_sample_size(
    difference: float,
    *,
    item_variance: float,
    before_variance: float = 0.0,
    after_variance: float = 0.0,
    before_samples: int = 1,
    after_samples: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int:
    """Return items needed to detect a mean paired difference (Miller 2024, arXiv 2411.00640).

    n = (z_{alpha/2} + z_beta)² (omega² + sigma_A²/K_A + sigma_B²/K_B) / delta².

    Args:
        difference: the true difference delta worth detecting.
        item_variance: omega², variance over items of the true per-item differences.
        before_variance, after_variance: mean variance of samples of one item in each run.
    """
    if difference == 0:
        raise ValueError("no number of items detects a difference of zero")
    variance = item_variance + before_variance / before_samples + after_variance / after_samples
    # The tolerance keeps 100.00000001 from becoming 101.
    return math.ceil(_quantiles(alpha, power) ** 2 * variance / difference**2 - 1e-9)


def binary_sample_size(
    difference: float, discordance: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Return items needed with single 0/1 samples, of which a share ``discordance`` changes.

    n = (z_{alpha/2} + z_beta)² (p_d - delta²) / delta².
    """
    if not abs(difference) <= discordance <= 1:
        raise ValueError(
            f"discordance must lie between |difference| and 1, got {discordance} for {difference}"
        )
    return paired_sample_size(
        difference, item_variance=discordance - difference**2, alpha=alpha, power=power
    )


def minimum_detectable_effect(
    standard_error: float, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Return the smallest true difference that this standard error would detect: (z + z) SE.

    Print it beside every "no difference": about 2.8 standard errors at the defaults.
    """
    return _quantiles(alpha, power) * standard_error


def binary_detectable_effect(
    num_items: int, discordance: float, *, alpha: float = 0.05, power: float = 0.8
) -> float:
    """Return the smallest detectable difference for single 0/1 samples; inverse of the size.

    delta = sqrt(q² p_d / (n + q²)) with q = z_{alpha/2} + z_beta.
    """
    if num_items < 1:
        raise ValueError(f"a detectable effect needs at least one item, got {num_items}")
    q = _quantiles(alpha, power) ** 2
    return math.sqrt(q * discordance / (num_items + q))


def paired_power(difference: float, standard_error: float, *, alpha: float = 0.05) -> float:
    """Return the power of a two-sided z test at a true difference."""
    z = normal_quantile(1 - alpha / 2)
    shift = difference / standard_error
    return float(special.ndtr(shift - z) + special.ndtr(-shift - z))
