"""Studies of the objective "compare": the better of two methods, or the best of a few, by verdicts.

A step reads the study, asks the pair policy (or the tournament) what it wants, and buys first the answers
that are missing, then the verdicts. Verdicts are rows of `preference`: one that any study bought counts in
all of them.
"""

from __future__ import annotations

from agent.context import AgentContext
from agent.pairwise._buying import buy, finish, note, wanted_calls
from agent.pairwise._choosing import TOURNAMENT, Choice, choose
from agent.pairwise._ordering import CompareObjective, judge_scorer
from agent.pairwise._reading import PEOPLE, Contest, read_contest
from agent.pairwise._sheets import ask_people, read_sheet, write_sheet
from agent.pairwise._words import comparison_facts

__all__ = [
    "PEOPLE",
    "TOURNAMENT",
    "CompareObjective",
    "advance_comparison",
    "comparison_facts",
    "judge_scorer",
    "read_sheet",
    "write_sheet",
]


def advance_comparison(context: AgentContext, study_id: int) -> bool:
    """Take the next step of a comparison that has no open calls; True where something changed."""
    with context.database.read() as session:
        contest = read_contest(session, context, study_id)
        choice = choose(session, context, contest)
        wanted = wanted_calls(session, contest, choice)
    if choice.over is not None:
        return finish(context, contest, choice.findings, choice.over)
    if wanted:
        return buy(context, contest, wanted, choice.findings)
    if choice.cells:
        return _ask(context, contest, choice)
    return note(context, contest, choice.findings, "waits for verdicts that another study asked for")


def _ask(context: AgentContext, contest: Contest, choice: Choice) -> bool:
    """Put the chosen pairs on the sheet and wait for people."""
    cells = [
        (
            contest.methods[contest.pairs[pair][0]].id or 0,
            contest.methods[contest.pairs[pair][1]].id or 0,
            contest.prompts[column].id or 0,
        )
        for pair, column in choice.cells
    ]
    with context.database.begin() as session:
        ask_people(session, contest.study_id, contest.study.seed, cells)
    reason = (
        f"waits for people: assay study sheet {contest.study_id} --out FILE.csv,"
        f" then: assay study verdicts {contest.study_id} FILE.csv"
    )
    return note(context, contest, choice.findings, reason)
