"""A small world of simulated models: prompts with right and wrong answers, and who gets what right.

Whether a model answers a prompt rightly is drawn once from a logistic model with a general and a per-dataset
ability, so that the models' scores hang together as real ones do. The new model is drawn like the others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.specs import DatasetSpec, PromptSpec

__all__ = ["DATASETS", "NEW_MODEL", "World", "load_answers", "make_world"]

NEW_MODEL = "newcomer-1"

DATASETS = (
    DatasetSpec(name="arithmetic", scorer="numeric"),
    DatasetSpec(name="comparison", scorer="multiple-choice"),
    DatasetSpec(name="spelling", scorer="exact-match"),
)

WORDS = (
    "anchor",
    "basket",
    "candle",
    "dragon",
    "engine",
    "forest",
    "garden",
    "hammer",
    "island",
    "jacket",
    "kettle",
    "ladder",
    "magnet",
    "needle",
    "orange",
    "pencil",
    "quartz",
    "ribbon",
    "saddle",
    "tunnel",
    "umpire",
    "velvet",
    "window",
    "yellow",
    "zipper",
    "bridge",
    "copper",
    "dinner",
    "eleven",
    "flower",
    "guitar",
    "helmet",
    "insect",
    "jungle",
    "kitten",
    "lemon",
    "market",
    "napkin",
    "office",
    "pepper",
    "rabbit",
    "silver",
    "ticket",
    "urgent",
    "violin",
    "walnut",
    "barrel",
    "cactus",
    "desert",
    "feather",
)


@dataclass(frozen=True)
class Question:
    """A prompt with a right and a wrong answer as a model would write them."""

    prompt: PromptSpec
    right: str
    wrong: str


@dataclass(frozen=True)
class World:
    """Everything that is true in the demo.

    Attributes:
        questions: N prompts with their answers.
        history: Names of the models whose scores are known.
        correct: (M + 1, N) True where a model is right; the last row is the new model's.
    """

    questions: tuple[Question, ...]
    history: tuple[str, ...]
    correct: NDArray[np.bool_]

    def true_score(self) -> float:
        """The new model's score on the whole benchmark: the mean of its datasets' means."""
        names = np.array([question.prompt.dataset for question in self.questions])
        return float(np.mean([self.correct[-1, names == dataset.name].mean() for dataset in DATASETS]))

    def save_answers(self, path: Path) -> None:
        """Write what the endpoint needs: every model's answer to every prompt text."""
        answers = {
            name: {
                question.prompt.text: question.right if self.correct[row, j] else question.wrong
                for j, question in enumerate(self.questions)
            }
            for row, name in [*enumerate(self.history), (len(self.history), NEW_MODEL)]
            if name == NEW_MODEL  # the history's scores are imported, only the newcomer is asked
        }
        path.write_text(json.dumps(answers), encoding="utf-8")

    def write_matrix_folder(self, folder: Path) -> None:
        """Write the history's scores as a matrix folder."""
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "scores.npz", scores=self.correct[:-1].astype(np.int8))
        lines = [
            json.dumps({"id": q.prompt.id, "dataset": q.prompt.dataset, "text": q.prompt.text})
            for q in self.questions
        ]
        (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / "models.csv").write_text("model\n" + "\n".join(self.history) + "\n", encoding="utf-8")


def load_answers(path: Path) -> dict[str, dict[str, str]]:
    """Read `World.save_answers`: model -> prompt text -> answer."""
    answers: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return answers


def make_world(rng: np.random.Generator, *, history: int = 60, per_dataset: int = 120) -> World:
    """Draw a world of `history` known models, one new one, and three datasets of `per_dataset` prompts."""
    questions = [
        *(_arithmetic(i, rng) for i in range(per_dataset)),
        *(_comparison(i, rng) for i in range(per_dataset)),
        *(_spelling(i, rng) for i in range(per_dataset)),
    ]
    dataset = np.repeat(np.arange(3), per_dataset)
    ability = rng.normal(0.3, 1.2, (history + 1, 1)) + rng.normal(0.0, 0.5, (history + 1, 3))
    difficulty = rng.normal(0.0, 1.3, len(questions))
    sharpness = rng.uniform(1.5, 3.5, len(questions))
    chance = 1.0 / (1.0 + np.exp(-sharpness * (ability[:, dataset] - difficulty)))
    correct = rng.random(chance.shape) < chance
    names = tuple(f"{family}-{size}" for family in _FAMILIES for size in _SIZES)[:history]
    return World(tuple(questions), names, correct)


_FAMILIES = ("heron", "osprey", "kestrel", "plover", "swift", "wren", "lapwing", "merlin", "curlew", "dunlin")
_SIZES = ("1b", "3b", "8b", "14b", "32b", "70b")


def _arithmetic(i: int, rng: np.random.Generator) -> Question:
    a, b = (int(x) for x in rng.integers(12, 999, 2))
    text = f"Problem {i + 1}: what is {a} + {b}? End with the number alone."
    prompt = PromptSpec(id=f"arithmetic-{i:03d}", dataset="arithmetic", text=text, target=str(a + b))
    return Question(prompt, f"{a} + {b} = {a + b}", f"{a} + {b} = {a + b + int(rng.integers(1, 20))}")


def _comparison(i: int, rng: np.random.Generator) -> Question:
    numbers = [str(x) for x in rng.choice(np.arange(100, 999), 4, replace=False)]
    best = int(np.argmax([int(x) for x in numbers]))
    options = "\n".join(f"{letter}. {number}" for letter, number in zip("ABCD", numbers, strict=True))
    text = f"Question {i + 1}: which number is the largest?\n{options}\nAnswer with one letter."
    prompt = PromptSpec(
        id=f"comparison-{i:03d}", dataset="comparison", text=text, target="ABCD"[best], choices=numbers
    )
    wrong = "ABCD"[(best + int(rng.integers(1, 4))) % 4]
    return Question(prompt, f"{'ABCD'[best]}.", f"The answer is ({wrong})")


def _spelling(i: int, rng: np.random.Generator) -> Question:
    first, second = (str(word) for word in rng.choice(WORDS, 2, replace=False))
    right = f"{first[::-1]} {second[::-1]}"
    text = f'Task {i + 1}: write the words "{first} {second}" with the letters of each word reversed.'
    prompt = PromptSpec(id=f"spelling-{i:03d}", dataset="spelling", text=text, target=right)
    return Question(prompt, right, f"{first[::-1]} {second}")
