"""What a layer keeps of each token for its backward, counted over what autograd really saves.

Of width D, query width Q, key and value width K, intermediate I and N heads: inputs (as wide as the
weights) and outputs of the two norms, 4 D; queries and the attention's output, 2 Q, with one number
a head of its log-sum-exp; keys and values, 2 K; gate, up and their product, 3 I; a number for each
norm's row. Norms over a head's width (qwen3) keep their input and their normed rows besides. A test
counts them in several shapes (``torch.autograd.graph.saved_tensors_hooks``). Torch-free.
"""

from __future__ import annotations

from educe.models.architectures import ModelShape

BYTES = {"float32": 4, "bfloat16": 2, "float64": 8, "int8": 2}  # int8: its cache is in bf16
# Norms and the softmax compute at least so wide.
_WIDE = 4


def layer_bytes(shape: ModelShape, *, master: int, compute: int) -> int:
    """Return the bytes that a layer keeps of a token.

    Args:
        master: bytes of a weight; the residual stream is as wide.
        compute: bytes of what products are computed in (autocast's type).
    """
    query = shape.num_heads * shape.head_width
    other = shape.num_key_value_heads * shape.head_width
    kept = 2 * shape.width * (master + compute)
    kept += (2 * query + 2 * other + 3 * shape.intermediate) * compute
    rows = shape.num_heads + 2
    if has_head_norms(shape):
        kept += (query + other) * (max(_WIDE, compute) + compute)
        rows += shape.num_heads + shape.num_key_value_heads
    return kept + rows * max(_WIDE, compute)


def has_head_norms(shape: ModelShape) -> bool:
    """Whether queries and keys are normed over the width of a head."""
    return shape.num_norms > 2 * shape.width


def shelved_layer_bytes(shape: ModelShape, *, master: int, compute: int) -> int:
    """Return the bytes that checkpointing keeps of a layer and token: its input, its attention and
    the log-sum-exp."""
    query = shape.num_heads * shape.head_width
    return shape.width * master + query * compute + shape.num_heads * _WIDE
