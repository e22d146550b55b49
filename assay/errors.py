"""The errors that Assay raises on purpose.

AssayError                 something went wrong that the user can mend; exit code 1
├── UsageError             the call itself was wrong (unknown name, bad value); exit code 2
│   ├── NotFoundError      what it names is not there
│   └── ConflictError      what is there already, or its present state, does not allow it
├── BadInputError          a file, row or record cannot be taken as it is; exit code 1
├── NotFittedError         an estimator or policy was asked before it was fitted
├── StorageError           the database cannot be used as it is (locked, read-only, wrong version)
├── BrokerError            the message broker cannot be reached
├── BudgetExceededError    a reservation would pass a cap
└── UnknownPriceError      a call's price is not known, so it is refused

Every error carries a `hint`: the next step, in words a user can act on.
"""

from __future__ import annotations

__all__ = [
    "AssayError",
    "BadInputError",
    "BrokerError",
    "BudgetExceededError",
    "ConflictError",
    "NotFittedError",
    "NotFoundError",
    "StorageError",
    "UnknownPriceError",
    "UsageError",
]


class AssayError(Exception):
    """Base of all errors that Assay raises on purpose.

    Args:
        message: What was wrong, and where, in one line.
        hint: What to do about it, in one line (may be empty).
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(AssayError):
    """The call itself was wrong: unknown name, impossible option, value out of range."""

    exit_code = 2


class NotFoundError(UsageError):
    """What the call names is not there."""


class ConflictError(UsageError):
    """What is there already, or the state that it is in, does not allow the call."""


class BadInputError(AssayError):
    """A file, row or record cannot be taken as it is; nothing of it was stored."""


class NotFittedError(AssayError):
    """An estimator or policy was asked for an answer before it was fitted or prepared."""


class StorageError(AssayError):
    """The database cannot be used as it is: absent, locked, read-only or of another version."""


class BrokerError(AssayError):
    """The message broker cannot be reached."""


class BudgetExceededError(AssayError):
    """A reservation would take a budget past its cap; nothing was reserved.

    Args:
        budget: The budget's label, such as "study 7 (usd)".
        asked: Amount asked for, in the budget's unit (micro-dollars, calls, tokens, GPU milliseconds).
        left: Amount that is left under the cap, in the same unit.
    """

    def __init__(self, budget: str, asked: int, left: int) -> None:
        super().__init__(
            f"the cap of {budget} leaves {left}, but {asked} was asked for", "raise the cap to continue"
        )
        self.budget = budget
        self.asked = asked
        self.left = left


class UnknownPriceError(AssayError):
    """The price of a call is not known; the call is refused, never counted as free."""
