"""Every LiveBench task with its grader, and the reasons why a question cannot be graded here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ktbench.eval.livebench.data_analysis import consecutive_events, cta, tablejoin
from ktbench.eval.livebench.extraction import partial_score, solutions, without_thoughts
from ktbench.eval.livebench.language import connections, plot_unscrambling, typos
from ktbench.eval.livebench.mathematics import amps_hard, integrals_with_game, math_comp, olympiad
from ktbench.eval.livebench.programs import grade_program, untestable
from ktbench.eval.livebench.question import LiveQuestion
from ktbench.eval.livebench.reasoning import (
    house_traversal,
    logic_with_navigation,
    spatial,
    sudoku,
    theory_of_mind,
    web_of_lies,
    web_of_lies_in_parts,
    zebra_puzzle,
)
from ktbench.eval.livebench.tables import tablereformat, unreadable
from ktbench.eval.sandbox.running import SandboxUnavailable
from ktbench.eval.tasks.harness import Grade
from ktbench.eval.tasks.ifeval import check_arguments, detector, follow

IN_SOLUTION = "2025-11-25"  # questions released from then on require the text in a solution


def instruction_following(question: LiveQuestion, answer: str) -> float:
    """Partial: halfway between all instructions followed and the fraction that is."""
    marked = solutions(answer, re.DOTALL) if question.released >= IN_SOLUTION else []
    followed = follow(question.instruction_ids, question.instruction_kwargs, (marked or [answer])[0].strip())
    return partial_score(followed, len(followed))


def uncheckable(question: LiveQuestion) -> str:
    """Why the instructions of a question cannot be checked; '' if they can."""
    if not question.instruction_ids:
        return "no instructions"
    try:
        check_arguments(question.instruction_ids, question.instruction_kwargs)
    except ValueError as error:
        return str(error)
    return ""


def _without_truth(question: LiveQuestion) -> str:
    return "no ground truth" if question.ground_truth in (None, "") else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grader:
    """How the answers of a task are graded.

    `grade` scores an answer without its thoughts, 0 to 1. `lacks` is what a question needs for it but does not have, ''
    for nothing. An `unsafe` grader runs generated programs. `setting` describes what the task's name leaves open.
    `deviations` are all the ways, by name, in which a score may differ from LiveBench's own; the differential test
    names them for the answers that show them.
    """

    grade: Callable[[LiveQuestion, str], float | Grade]
    lacks: Callable[[LiveQuestion], str] = _without_truth
    unsafe: bool = False
    setting: Callable[[], str] = lambda: ""
    deviations: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> str:
        """How answers are graded, for the conditions of a report; '' if exactly as in LiveBench."""
        return "; ".join(filter(None, (self.setting(), *self.deviations.values())))


_FOLLOWING = Grader(
    grade=instruction_following,
    lacks=uncheckable,
    setting=lambda: f"instructions checked strictly, languages detected by {detector()}",
    deviations={
        "sentences": "sentences and words in capitals counted by ktbench's rules, LiveBench's need trained tables"
    },
)
_CODING = Grader(
    grade=grade_program,
    lacks=untestable,
    unsafe=True,
    deviations={
        "global": "programs run as they are, for each test anew; LiveBench makes them the body of a function",
        "streams": "standard streams are files, also as bytes and by name; LiveBench's are text within its process",
        "quit": "quit() ends a program; LiveBench takes it away",
        "array": "an array of one element is no list; in LiveBench it equals one",
        "equality": "an object of a program's own class is no value; in LiveBench it may equal everything",
        "limits": "limits of the sandbox (files, memory, 6 s of processor time); LiveBench's is 6 s on the clock",
    },
)
_AMPS = Grader(
    grade=amps_hard,
    deviations={
        "judge": (
            "formulae agree where their values do, numbers within 0.001 and functions to nine digits; "
            "LiveBench asks a model where SymPy cannot tell"
        ),
        "negative": "a formula's negative is wrong but for characteristic polynomials; LiveBench's model accepts it",
    },
)
_GAME = Grader(
    grade=integrals_with_game,
    deviations={"latex": "LaTeX other than plain fractions is read by ktbench, LiveBench has SymPy read it"},
)

# By LiveBench's names. If a task has changed with a release, its grader checks the question's date.
GRADERS: Mapping[str, Grader] = {
    "web_of_lies_v2": Grader(grade=web_of_lies),
    "web_of_lies_v3": Grader(grade=web_of_lies_in_parts),
    "zebra_puzzle": Grader(grade=zebra_puzzle),
    "spatial": Grader(grade=spatial),
    "theory_of_mind": Grader(grade=theory_of_mind),
    "house_traversal": Grader(grade=house_traversal),
    "sudoku": Grader(grade=sudoku),
    "logic_with_navigation": Grader(grade=logic_with_navigation),
    "math_comp": Grader(grade=math_comp),
    "olympiad": Grader(grade=olympiad),
    "AMPS_Hard": _AMPS,
    "integrals_with_game": _GAME,
    "LCB_generation": _CODING,
    "coding_completion": _CODING,
    "cta": Grader(grade=cta),
    "tablejoin": Grader(grade=tablejoin),
    "tablereformat": Grader(grade=tablereformat, lacks=unreadable),
    "consecutive_events": Grader(grade=consecutive_events),
    "typos": Grader(grade=typos),
    "connections": Grader(grade=connections),
    "plot_unscrambling": Grader(grade=plot_unscrambling),
    "paraphrase": _FOLLOWING,
    "simplify": _FOLLOWING,
    "story_generation": _FOLLOWING,
    "summarize": _FOLLOWING,
}

# Tasks that can be graded only in their own containers.
ELSEWHERE: Mapping[str, str] = {
    "code_generation": "its unit tests need BigCodeBench's container",
    "code_completion": "its unit tests need BigCodeBench's container",
    "agentic_coding": "its tests need a container with the repository that is to be mended",
}


def why_ungradable(question: LiveQuestion, *, confirm_unsafe: bool = False) -> str:
    """Why a question cannot be graded here; '' if it can."""
    for name in (question.task, question.category):
        if name in ELSEWHERE:
            return ELSEWHERE[name]
    if (grader := GRADERS.get(question.task)) is None:
        return f"no grader of the task {question.task}"
    if question.temperature:
        return f"requires temperature {question.temperature:g}"
    if grader.unsafe and not confirm_unsafe:
        return grader.lacks(question) or "its programs run only with confirm_unsafe=true"
    return grader.lacks(question)


def grade_answer(question: LiveQuestion, answer: str, *, confirm_unsafe: bool = False) -> Grade:
    """The grade of an answer without its `<think>` blocks: 0 with the reason if the grader fails on it."""
    if why := why_ungradable(question, confirm_unsafe=confirm_unsafe):
        return Grade(None, why)
    try:
        graded = GRADERS[question.task].grade(question, without_thoughts(answer))
    except SandboxUnavailable as error:
        return Grade(None, str(error))
    except (OSError, ImportError) as error:  # a fault of this machine, not of the answer
        return Grade(None, f"the grader failed: {error}")
    except Exception as error:  # as in LiveBench: no answer may prevent the others from being graded
        return Grade(0.0, f"the grader failed: {type(error).__name__}: {error}")
    return graded if isinstance(graded, Grade) else Grade(graded)
