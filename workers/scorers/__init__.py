"""Scorers: from an output to a score in [0, 1]. What cannot be scored is said to be so, never scored 0."""

from assay.plugins import Registry
from workers.scorers._base import Scorer, ScorerFactory, Unscorable
from workers.scorers._text import usable_text

__all__ = ["SCORERS", "Scorer", "ScorerFactory", "Unscorable", "usable_text"]

SCORERS: Registry[ScorerFactory] = Registry(
    "scorer",
    "assay.scorers",
    {
        "bleu": "workers.scorers._overlap:BleuScorer",
        "exact-match": "workers.scorers._text:ExactMatchScorer",
        "f1": "workers.scorers._overlap:F1Scorer",
        "loglikelihood-choice": "workers.scorers._choices:LoglikelihoodChoiceScorer",
        "multiple-choice": "workers.scorers._text:MultipleChoiceScorer",
        "numeric": "workers.scorers._text:NumericScorer",
        "regex": "workers.scorers._text:RegexScorer",
        "rouge": "workers.scorers._overlap:RougeScorer",
        "replay": "workers.scorers._replay:ReplayScorer",
    },
)
