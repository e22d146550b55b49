"""What one of several processes does that reserve against one cap."""

from __future__ import annotations

import random
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

from assay.errors import BudgetExceededError
from storage import ledger
from storage.database import Database


def reserve_and_close(
    url: str, seed: int, study_id: int, job_ids: list[int], start: Barrier, answers: SimpleQueue[int]
) -> None:
    """Reserve for each job and settle or release; answers how many reservations were granted."""
    chance = random.Random(seed)
    db = Database(url)
    granted = 0
    start.wait()
    for job_id in job_ids:
        charge = ledger.Charge(usd=chance.randint(1, 20))
        try:
            with db.begin() as session:
                ledger.reserve(session, ledger.budgets_of(session, [("study", study_id)]), {job_id: charge})
        except BudgetExceededError:
            continue
        granted += 1
        with db.begin() as session:
            if chance.random() < 0.3:
                ledger.release(session, [job_id])
            else:
                ledger.settle(session, {job_id: ledger.Charge(usd=chance.randint(0, charge.usd))})
    db.close()
    answers.put(granted)
