"""Output review in layers: what a text contains that must not be served or rewarded.

Layers are independent and cheap ones come first: exact rules (secrets, personal data, URLs), word
lists that see through disguises, insecure code, prompt injection, a trained classifier, a judge
model. A queue keeps what people decide. ``review.policy`` turns a review into a gate for serving
or into a penalty, a mask or a stop for training rollouts.

>>> from educe.rewards.review import Reviewer, RuleLayer
>>> Reviewer([RuleLayer()]).review("my card is 4111 1111 1111 1111").is_unsafe
True
"""

from __future__ import annotations

from educe.rewards.review.build import build_reviewer
from educe.rewards.review.classifier import ClassifierLayer, TextClassifier
from educe.rewards.review.code import CodeLayer
from educe.rewards.review.findings import Layer, Review, Reviewer, ReviewFinding
from educe.rewards.review.injection import InjectionLayer
from educe.rewards.review.judge import JudgeLayer
from educe.rewards.review.policy import GateDecision, gate_text, reviewed_score
from educe.rewards.review.queue import ReviewQueue
from educe.rewards.review.refusal import ReplyKind, classify_reply
from educe.rewards.review.rules import RuleLayer
from educe.rewards.review.words import WordLayer, WordList

__all__ = [
    "ClassifierLayer",
    "CodeLayer",
    "GateDecision",
    "InjectionLayer",
    "JudgeLayer",
    "Layer",
    "ReplyKind",
    "Review",
    "ReviewFinding",
    "ReviewQueue",
    "Reviewer",
    "RuleLayer",
    "TextClassifier",
    "WordLayer",
    "WordList",
    "build_reviewer",
    "classify_reply",
    "gate_text",
    "reviewed_score",
]
