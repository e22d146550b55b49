"""Judges: models that read answers and score them, or say which of two is better.

A judge is a pinned instrument: model, template hash and parameters are the identity of the scorer
(`pin`), so that the scores of two judges never mix. Built from a scorer's row, it turns a `Question` into a
`Verdict` through any `Ask`:

    judge = make_judge("judge-pairwise", {})
    verdict = await judge.judge(Question(key, text, answer_of_a, answer_of_b), ask)
    verdict.ok, verdict.preference, verdict.value, verdict.flipped, verdict.usage, verdict.reason

Within the program nobody calls a judge directly: a judgement is a job of the queue `judge`, reserved in the
ledger before and settled after. A job that names two methods (`NewJob.other_method_id`, A and B as in
`storage.preferences.ordered_pair`) becomes a row of `preference`, with votes and flip in its `details`; one
that names one method becomes a score. There is a value, or a status that says why not (`assay.statuses`): a
malformed verdict is never a score of zero.
"""

from workers.judges._base import Ask, Call, Judge, JudgeFactory, Question, Usage, Verdict
from workers.judges._pinning import JUDGES, is_judge, judge_name, make_judge, pin
from workers.judges._templates import TEMPLATES, template_hash

__all__ = [
    "JUDGES",
    "TEMPLATES",
    "Ask",
    "Call",
    "Judge",
    "JudgeFactory",
    "Question",
    "Usage",
    "Verdict",
    "is_judge",
    "judge_name",
    "make_judge",
    "pin",
    "template_hash",
]
