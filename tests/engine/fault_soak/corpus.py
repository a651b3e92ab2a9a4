"""Prompts of a crowd of branches: growing contexts, forks, and the right answer to each."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tests.engine.driver import Driver

OUTPUT_TOKENS = 6
ROOTS = 4
FORKS = 3
TURNS = 4
STEM_TOKENS = (60, 110)
TURN_TOKENS = (20, 60)


@dataclass(frozen=True)
class Turn:
    """One request of a branch: its whole context, and the output that is right."""

    branch: int
    number: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def make_corpus(folder: Path, model: Path, seed: int, roots: int = ROOTS) -> list[Turn]:
    """All turns in an order in which no turn comes before the one it goes on from. Answers are
    those of one engine that never reuses KV."""
    rng = random.Random(seed)

    def fresh(bounds: tuple[int, int]) -> list[int]:
        return [rng.randrange(256) for _ in range(rng.randint(*bounds))]

    stems = [fresh(STEM_TOKENS) for _ in range(roots)]
    contexts = [list(stem) for stem in stems for _ in range(FORKS)]
    turns: list[Turn] = []
    folder.mkdir()
    with Driver(folder, model, ("ref",), prefix_cache=False, l1_blocks=400) as driver:
        for number in range(TURNS):
            for context in contexts:
                context.extend(fresh(TURN_TOKENS))
            answers = driver.run(contexts, prefill="ref", max_tokens=OUTPUT_TOKENS)
            for branch, (context, answer) in enumerate(zip(contexts, answers, strict=True)):
                turns.append(Turn(branch, number, tuple(context), tuple(answer)))
                context.extend(answer)
            # one branch is a fork of another's present context from here on
            fork = number % (len(contexts) - 1)
            contexts[fork + 1] = list(contexts[fork])
    distinct = {turn.answer for turn in turns}
    assert len(distinct) > len(turns) // 2, "the model says the same whatever it is asked"
    return turns
