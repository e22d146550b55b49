"""Scorers that measure how much of the target's wording an answer has: token F1, ROUGE, BLEU."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Any

from assay.errors import UsageError
from workers.backends import Answer
from workers.scorers._text import targets_of, usable_text

__all__ = ["BleuScorer", "F1Scorer", "RougeScorer"]

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

ROUGE_VARIANTS = ("rouge1", "rouge2", "rougeL", "rougeLsum")


class F1Scorer:
    """Token F1 as SQuAD computes it (Rajpurkar et al. 2016): the best over the targets.

    Both sides are put in lower case and lose punctuation and English articles.
    """

    graded = True

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        given = squad_tokens(usable_text(answer))
        return max(_f1(given, squad_tokens(target)) for target in targets_of(fields))


def squad_tokens(text: str) -> list[str]:
    """The words that SQuAD's evaluation compares."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def _f1(given: list[str], target: list[str]) -> float:
    if not given or not target:
        return float(given == target)
    common = sum((Counter(given) & Counter(target)).values())
    return 2 * common / (len(given) + len(target))


class RougeScorer:
    """ROUGE F-measure (Lin 2004) by the package rouge-score: the best over the targets.

    Args:
        variant: rouge1, rouge2, rougeL or rougeLsum.
        stem: Compare word stems (English).
    """

    graded = True

    def __init__(self, *, variant: str = "rougeL", stem: bool = False) -> None:
        from rouge_score.rouge_scorer import RougeScorer as Reference  # loads nltk: only where it is used

        if variant not in ROUGE_VARIANTS:
            raise UsageError(f"unknown ROUGE variant '{variant}'", f"known: {', '.join(ROUGE_VARIANTS)}")
        self._variant = variant
        self._reference = Reference([variant], use_stemmer=stem)

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        given = usable_text(answer)
        return max(self._one(target, given) for target in targets_of(fields))

    def _one(self, target: str, given: str) -> float:
        return float(self._reference.score(target, given)[self._variant].fmeasure)


class BleuScorer:
    """Sentence BLEU by sacrebleu, against all targets at once, as a share of 1.

    Args:
        tokenize: sacrebleu's tokenizer: 13a, char, zh, intl or none.
        lowercase: Ignore case.
    """

    graded = True

    def __init__(self, *, tokenize: str = "13a", lowercase: bool = False) -> None:
        from sacrebleu.metrics.bleu import BLEU

        if tokenize not in (known := ("13a", "char", "intl", "none", "zh")):
            raise UsageError(f"unknown BLEU tokenizer '{tokenize}'", f"known: {', '.join(known)}")
        # Effective order: a short sentence is not zero for having no 4-grams.
        self._reference = BLEU(tokenize=tokenize, lowercase=lowercase, effective_order=True)

    def score(self, answer: Answer, fields: dict[str, Any]) -> float:
        """See `Scorer.score`."""
        found = self._reference.sentence_score(usable_text(answer), targets_of(fields)).score
        return min(1.0, max(0.0, round(found / 100, 12)))
