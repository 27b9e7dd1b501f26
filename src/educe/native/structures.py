"""The C sources' structures, field by field; see there what a field is.

Addresses are of contiguous tensors that the caller keeps alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p


class Norm(ctypes.Structure):
    """x += delta * delta_scale + delta_bias; out = x / rms(x) * weight, or its int8 rows."""

    _fields_ = [
        ("x", c_void_p), ("delta", c_void_p), ("delta_scale", c_void_p), ("delta_bias", c_void_p),
        ("weight", c_void_p), ("out", c_void_p), ("scales", c_void_p),
        ("rows", c_int64), ("width", c_int64), ("epsilon", c_float),
        ("delta_narrow", c_int32), ("out_kind", c_int32),
    ]  # fmt: skip


class Quantise(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p), ("out", c_void_p), ("scales", c_void_p),
        ("rows", c_int64), ("width", c_int64), ("narrow", c_int32),
    ]  # fmt: skip


class Gated(ctypes.Structure):
    _fields_ = [
        ("gate", c_void_p), ("up", c_void_p), ("scales", c_void_p), ("out", c_void_p),
        ("rows", c_int64), ("width", c_int64), ("narrow", c_int32),
    ]  # fmt: skip


class Attend(ctypes.Structure):
    _fields_ = [
        ("joined", c_void_p), ("scales", c_void_p), ("bias", c_void_p), ("rotation", c_void_p),
        ("head_norms", c_void_p), ("slots", c_void_p), ("out", c_void_p), ("order", c_void_p),
        ("lengths", c_void_p), ("starts", c_void_p), ("segments", c_void_p),
        ("slot_values", c_int64), ("slot_row", c_int64), ("slot_head", c_int64),
        ("rows", c_int64), ("new_tokens", c_int64), ("heads", c_int64), ("kv_heads", c_int64),
        ("width", c_int64), ("layer", c_int64), ("block", c_int64),
        ("scale", c_float), ("epsilon", c_float), ("joined_narrow", c_int32), ("narrow", c_int32),
    ]  # fmt: skip


class Product(ctypes.Structure):
    """x W^T from packed weights; see products.c."""

    _fields_ = [
        ("x", c_void_p), ("weight", c_void_p), ("bias", c_void_p), ("row_scales", c_void_p),
        ("scales", c_void_p), ("offsets", c_void_p), ("out", c_void_p),
        ("rows", c_int64), ("bytes", c_int64), ("outputs", c_int64),
        ("integers", c_int32), ("gated", c_int32), ("out_kind", c_int32),
    ]  # fmt: skip


class Pack(ctypes.Structure):
    _fields_ = [
        ("weight", c_void_p), ("out", c_void_p), ("outputs", c_int64), ("words", c_int64),
    ]  # fmt: skip


class Sample(ctypes.Structure):
    _fields_ = [
        ("logits", c_void_p), ("temperatures", c_void_p), ("draws", c_void_p),
        ("tokens", c_void_p), ("shares", c_void_p),
        ("rows", c_int64), ("vocabulary", c_int64), ("stride", c_int64), ("narrow", c_int32),
    ]  # fmt: skip


class RmsForward(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p), ("weight", c_void_p), ("out", c_void_p), ("scales", c_void_p),
        ("rows", c_int64), ("width", c_int64), ("epsilon", c_float), ("narrow", c_int32),
    ]  # fmt: skip


class RmsBackward(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p), ("weight", c_void_p), ("scales", c_void_p), ("grad", c_void_p),
        ("grad_x", c_void_p), ("parts", c_void_p),
        ("rows", c_int64), ("width", c_int64), ("part", c_int64), ("narrow", c_int32),
    ]  # fmt: skip


class Gate(ctypes.Structure):
    _fields_ = [
        ("gate", c_void_p), ("up", c_void_p), ("grad", c_void_p), ("out", c_void_p),
        ("grad_up", c_void_p), ("size", c_int64), ("narrow", c_int32),
    ]  # fmt: skip


class Logprobs(ctypes.Structure):
    _fields_ = [
        ("logits", c_void_p), ("targets", c_void_p), ("temperatures", c_void_p),
        ("logprobs", c_void_p), ("entropies", c_void_p), ("normalisers", c_void_p),
        ("grad_logprobs", c_void_p), ("grad_entropies", c_void_p),
        ("rows", c_int64), ("vocabulary", c_int64), ("narrow", c_int32),
    ]  # fmt: skip


class Rotate(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p), ("cosine", c_void_p), ("sine", c_void_p), ("out", c_void_p),
        ("rows", c_int64), ("heads", c_int64), ("width", c_int64),
        ("sign", c_float), ("narrow", c_int32), ("out_narrow", c_int32),
    ]  # fmt: skip


class Heads(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p), ("rows", c_void_p), ("columns", c_void_p), ("other", c_void_p),
        ("products", c_void_p), ("tokens", c_int64), ("heads", c_int64), ("width", c_int64),
        ("stride", c_int64), ("scale", c_float), ("narrow", c_int32), ("other_narrow", c_int32),
    ]  # fmt: skip


class Forest(ctypes.Structure):
    _fields_ = [
        ("blocks", c_void_p), ("ranges", c_void_p),
        ("query_rows", c_void_p), ("key_rows", c_void_p), ("value_rows", c_void_p),
        ("grad_rows", c_void_p), ("query_columns", c_void_p), ("key_columns", c_void_p),
        ("value_columns", c_void_p), ("grad_columns", c_void_p), ("lse", c_void_p),
        ("deltas", c_void_p), ("out", c_void_p), ("grad_keys", c_void_p),
        ("grad_values", c_void_p), ("num_blocks", c_int64), ("tokens", c_int64),
        ("heads", c_int64), ("kv_heads", c_int64), ("width", c_int64), ("stride", c_int64),
        ("scale", c_float), ("narrow", c_int32),
    ]  # fmt: skip


class Arrange(ctypes.Structure):
    _fields_ = [
        ("x", c_void_p), ("other", c_void_p), ("rows", c_void_p), ("words", c_void_p),
        ("pairs", c_void_p), ("products", c_void_p),
        ("tokens", c_int64), ("padded", c_int64), ("heads", c_int64), ("width", c_int64),
    ]  # fmt: skip


class Tiled(ctypes.Structure):
    _fields_ = [
        ("query_rows", c_void_p), ("query_words", c_void_p), ("query_pairs", c_void_p),
        ("key_rows", c_void_p), ("key_words", c_void_p), ("key_pairs", c_void_p),
        ("value_rows", c_void_p), ("value_words", c_void_p), ("value_pairs", c_void_p),
        ("grad_rows", c_void_p), ("grad_words", c_void_p), ("grad_pairs", c_void_p),
        ("last", c_void_p), ("smallest", c_void_p), ("largest", c_void_p),
        ("lse", c_void_p), ("deltas", c_void_p), ("out", c_void_p),
        ("grad_keys", c_void_p), ("grad_values", c_void_p),
        ("tokens", c_int64), ("padded", c_int64), ("heads", c_int64), ("kv_heads", c_int64),
        ("width", c_int64), ("scale", c_float),
    ]  # fmt: skip
