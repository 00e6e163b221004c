"""Every source on small local data in the layouts of the published files: prompts and grades."""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path

import numpy as np
import pytest

from ktbench.eval.evaluate import evaluate_task
from ktbench.eval.livebench.graders import GRADERS
from ktbench.eval.tasks import harness
from ktbench.eval.tasks.sources import SOURCES, needs_decode
from ktbench.spec.suite import SuiteSpec, TaskSpec
from tests.eval.conftest import SHARED
from tests.eval.tasks.evaluation import evaluated, loaded, replying, values
from tests.eval.tasks.local import OWN, write_lines
from tests.eval.tasks.scripted import ScriptedLM


def test_every_nano_task_needs_no_files() -> None:
    from ktbench.eval.tasks.nano import questions

    truth = {one.prompt: one.answer for one in questions(3, 7)}
    for source in (f"nano/{name}" for name in SOURCES["nano"].names or ()):
        lm = ScriptedLM(lambda prompt, generation: truth[prompt] if generation["until"] == ["\n"] else "")
        answers = evaluated(source, None, lm, limit=3, seed=7)
        assert values(answers) == [1.0] * 3
        assert [one.tokens for one in answers] == [len(one.answer) for one in answers]
        assert values(evaluated(source, None, replying("no"), limit=3, seed=7)) == [0.0] * 3
    assert len(loaded("nano/addition", None).questions) == 200


def test_gsm8k_shows_the_train_split_and_grades_the_last_number(data: Path) -> None:
    lm = replying("2 and 2 is 4.\n#### 3")
    answers = evaluated("gsm8k", data, lm, shots=8)
    assert values(answers) == [float(i % 5 == 3) for i in range(10)]
    assert lm.prompts[7].count("Question: train: how many") == 8
    assert lm.prompts[7].endswith("\n\nQuestion: test: how many are 7 and 1?\nAnswer:")
    assert values(evaluated("gsm8k", data / "gsm8k", replying("it is $1,3.")))[:5] == [0.0] * 5


@pytest.mark.parametrize(("source", "q", "a"), [("gsm8k_cot", "Q", "A"), ("paper/gsm8k", "Question", "Answer")])
def test_gsm8k_with_chains_of_thought_needs_no_train_split(source: str, q: str, a: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "test.jsonl", [{"question": "How many?", "answer": "#### 1,018"}])
    lm = replying("The answer is 1018.")
    assert values(evaluated(source, tmp_path, lm, shots=8)) == [1.0]
    (prompt,) = lm.prompts
    assert prompt.startswith(f"{q}: There are 15 trees in the grove.")
    assert prompt.count(f"{q}: ") == 9
    assert prompt.endswith(f"23 - 15 is 8. The answer is 8.\n\n{q}: How many?\n{a}:")


def test_mmlu_takes_the_likeliest_letter(data: Path) -> None:
    lm = ScriptedLM(likes=lambda context, letter: -1.0 if letter == " C" else -2.0)
    answers = evaluated("mmlu/anatomy", data, lm, shots=5)
    assert values(answers) == [float(i % 4 == 2) for i in range(9)]
    assert {one.answer for one in answers} == {"C"}
    assert {one.tokens for one in answers} == {None}
    first = lm.prompts[0]
    assert first.startswith(
        "The following are multiple choice questions (with answers) about anatomy.\n\ndev, question 0,"
    )
    assert first.endswith('test, question 0,\nsecond line?\nA. a\nB. b\nC. c, d\nD. "e"\nAnswer:')
    assert not needs_decode(TaskSpec(name="t", source="mmlu/anatomy"))


def test_mmlu_pro_asks_the_questions_of_a_subject(data: Path) -> None:
    lm = replying("Hence the answer is (B).")
    answers = evaluated("mmlu_pro/computer_science", data, lm, shots=5)
    assert values(answers) == [float(i % 3 == 1) for i in range(6)]
    assert all("law" not in prompt.partition("\n")[2] for prompt in lm.prompts)
    assert lm.prompts[0].count("Question:\nvalidation computer science") == 5
    with pytest.raises(ValueError, match="has no question of the category poetry"):
        loaded("mmlu_pro/poetry", data)


def test_humaneval_runs_programs_in_a_sandbox(data: Path) -> None:
    lm = ScriptedLM(lambda prompt, generation: "    return a + b + 2\n" if "add_2" in prompt else "    return 0\n")
    answers = evaluated("humaneval", data, lm, confirm_unsafe=True)
    assert {one.question: one.value for one in answers} == {f"HumanEval/{i}": float(i == 2) for i in range(4)}
    assert lm.prompts[0] == 'def add_0(a, b):\n    """The sum of a, b and 0."""\n'
    assert "AssertionError" in answers[0].why


def test_mbpp_shows_the_examples_of_lm_eval(data: Path) -> None:
    lm = replying("def add_11(a, b):\n    return a + b + 11\n")
    answers = evaluated("mbpp", data, lm, shots=3, confirm_unsafe=True)
    assert {one.question: one.value for one in answers} == {str(i): float(i == 11) for i in range(11, 16)}
    shown = [f"add two numbers and {i}. Your code" for i in (2, 3, 4, 11)]
    places = [lm.prompts[0].index(text) for text in shown]
    assert places == sorted(places)
    assert "[BEGIN]\ndef add_2(a, b):\r\n  return a + b + 2\n[DONE]\n\nYou are" in lm.prompts[0]
    assert lm.prompts[0].endswith("assert add_11(2, 1) == 14\n[BEGIN]\n")


def test_mbpp_of_the_paper_shows_other_examples_indented_by_four(data: Path) -> None:
    lm = replying("")
    assert set(values(evaluated("paper/mbpp", data, lm, shots=3, confirm_unsafe=True))) == {0.0}
    assert "[BEGIN]\ndef add_8(a, b):\n    return a + b + 8\n[DONE]\n\nYou are" in lm.prompts[0]
    assert "and 4. Your" not in lm.prompts[0]
    assert lm.requests[0].args[1]["max_gen_toks"] == 1024


def test_strategyqa_leaves_out_what_it_shows_and_grades_the_last_yes_or_no(data: Path) -> None:
    lm = replying("No, 2 is a number. So the answer is Yes.")
    answers = evaluated("strategyqa", data, lm, shots=4)
    assert values(answers) == [1.0, 0.0] * 3
    assert set(values(evaluated("strategyqa", data, replying("Who knows. Yesterday.")))) == {0.0}
    assert lm.prompts[0].startswith("Question: Do hamsters provide food for any animals?\nAnswer: Hamsters are prey")
    assert lm.prompts[0].endswith("at some commencements. So the answer is yes.\n\nQuestion: Is 0 even?\nAnswer:")


def test_livebench_asks_its_release_and_leaves_what_cannot_be_graded(data: Path) -> None:
    lm = replying("<solution>yes, no, yes</solution>")
    answers = evaluated("livebench/reasoning/web_of_lies_v2", data, lm, release="2024-11-25")
    assert [one.question[-1] for one in answers] == ["1", "2", "3"]
    assert values(answers) == [1.0] * 3
    assert lm.prompts[0] == "Question 1 of web_of_lies_v2: is {it} so?"
    lm = replying("no request")
    answers = evaluated("livebench/language/typos", data / "livebench", lm, release="2024-11-25")
    assert [(one.value, one.why) for one in answers] == [(None, "no ground truth")] * 2
    assert not lm.requests


def test_setting_names_what_files_lack_and_how_answers_are_graded(tmp_path: Path) -> None:
    def setting_of(name: str, *lists: dict[str, object]) -> str:
        category, _, task = name.partition("/")
        rows = [
            {"question_id": str(i), "category": category, "task": task, "turns": ["?"]} | one
            for i, one in enumerate(lists)
        ]
        write_lines(tmp_path / f"{category}__{task}.jsonl", rows)
        return loaded(f"livebench/{name}", tmp_path, confirm_unsafe=True).built.setting

    tests = [{"input": "1", "output": "1"}]
    index = [{"task": "coding/LCB_generation", "question_ids": ["0", "1", "2", "3"]}]
    (tmp_path / "release_2024-08-31_index.json").write_text(json.dumps(index))
    told = setting_of("coding/LCB_generation", {"tests": tests, "tests_total": 9}, {"tests": tests}, {})
    assert told.endswith(
        "; 1 of 3 questions with only part of their tests: scores are upper bounds; "
        "1 of 4 questions of release 2024-08-31 have no row here"
    )
    assert all(text in told for text in GRADERS["LCB_generation"].deviations.values())
    assert setting_of("math/AMPS_Hard", {}) == "; ".join(GRADERS["AMPS_Hard"].deviations.values())
    assert setting_of("instruction_following/paraphrase", {}).startswith(
        "instructions checked strictly, languages detected by langdetect"
    )
    assert setting_of("language/typos", {}) == ""


def test_any_task_of_lm_eval_takes_local_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text(json.dumps(OWN))
    monkeypatch.setattr(harness, "_places", lambda: {"own": tmp_path / "mine"})
    rows = [{"text": f"{i}?", "right": i % 2, "wrong": None} for i in range(4)]
    write_lines(tmp_path / "data" / "own" / "test.jsonl", rows)
    write_lines(tmp_path / "data" / "own" / "train.jsonl", rows[:2])
    lm = ScriptedLM(likes=lambda context, choice: float(choice == " no"))
    assert values(evaluated("lm_eval/own", tmp_path / "data", lm, shots=1)) == [1.0, 0.0, 1.0, 0.0]
    assert not needs_decode(TaskSpec(name="t", source="lm_eval/own"))
    with pytest.raises(ValueError, match=r"shots=3: there are 2 worked examples"):
        loaded("lm_eval/own", tmp_path / "data", shots=3)
    with pytest.raises(ValueError, match=r"lm_eval/owm: .* no single task of this name; similar are own"):
        loaded("lm_eval/owm", None)
    (tmp_path / "data" / "own" / "train.jsonl").unlink()
    with pytest.raises(ValueError, match=r"needs the split train, but there is no train.jsonl"):
        loaded("lm_eval/own", tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "splits", "held"),
    [
        ("train", {"training_split": "test", "test_split": "test"}, 0),
        ("named", {"test_split": None, "validation_split": "test", "fewshot_split": "test"}, 0),
        ("validation", {"training_split": None, "test_split": None, "validation_split": "test"}, 3),
        ("test", {"training_split": None, "test_split": "test", "fewshot_split": "test"}, 3),
        ("apart", {"training_split": None, "test_split": "test", "validation_split": "train"}, 2),
    ],
)
def test_no_question_is_its_own_worked_example(
    name: str, splits: dict[str, str | None], held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.yaml").write_text(json.dumps(OWN | splits | {"task": name}))
    monkeypatch.setattr(harness, "_places", lambda: {name: tmp_path / "mine"})
    write_lines(tmp_path / "test.jsonl", [{"text": f"{i}?", "right": i % 2} for i in range(4)])
    write_lines(tmp_path / "train.jsonl", [{"text": f"train{i}?", "right": i} for i in range(2)])
    lm = ScriptedLM()
    for shots in range(1, held + 1):
        evaluated(f"lm_eval/{name}", tmp_path, lm, shots=shots)
    assert not [prompt for prompt in lm.prompts if prompt.rpartition("\n\n")[2] in prompt.split()[:-1]]
    with pytest.raises(ValueError, match=f"shots={held + 1}: there are {held} worked examples"):
        loaded(f"lm_eval/{name}", tmp_path, shots=held + 1)


_SHUFFLING = """
import random

def shuffled(rows):
    return rows.map(lambda row: {"text": " ".join(random.sample("abcdefgh", 8))})

def results(row, found):
    return {"acc": float(random.random() < 0.5)}
"""


def test_tasks_that_draw_at_random_ask_and_grade_alike_in_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GPQA, which shuffles its choices by the global generator, and MMMU, which guesses."""
    (tmp_path / "mine").mkdir()
    functions = "process_docs: !function utils.shuffled\nprocess_results: !function utils.results\n"
    words = {name: value for name, value in OWN.items() if name != "doc_to_choice"}
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in {**words, "task": "drawing"}.items())
    (tmp_path / "mine" / "own.yaml").write_text(f'{lines}doc_to_choice: ["no", "yes"]\n{functions}')
    (tmp_path / "mine" / "utils.py").write_text(_SHUFFLING)
    monkeypatch.setattr(harness, "_places", lambda: {"drawing": tmp_path / "mine"})
    for split in ("train", "test"):
        write_lines(tmp_path / f"{split}.jsonl", [{"text": "", "right": i % 2} for i in range(8)])
    asked, graded, undisturbed = [], [], []
    for seed in range(3):
        random.seed(seed)
        np.random.seed(seed)
        lm, state = ScriptedLM(), random.getstate()
        task = loaded("lm_eval/drawing", tmp_path, shots=2)
        suite = SuiteSpec(name="s", tasks=(task.spec,))
        for _ in range(2):
            graded.append(values(list(evaluate_task(task, lm, suite))))
        undisturbed.append(random.getstate() == state)
        asked += [lm.prompts[: len(lm.prompts) // 2], lm.prompts[len(lm.prompts) // 2 :]]
    assert len(set(asked[0])) == 8
    assert asked == [asked[0]] * 6
    assert graded == [graded[0]] * 6 and len(set(graded[0])) == 2
    assert all(undisturbed)


def test_our_worked_examples_of_mbpp_are_those_of_lm_eval() -> None:
    from lm_eval import tasks

    text = (Path(tasks.__file__).parent / "mbpp" / "utils.py").read_text()
    found = next(
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Return) and isinstance(node.value, ast.List)
    )
    shots = ast.literal_eval(found.value)  # type: ignore[arg-type]
    assert [shot["task_id"] for shot in shots] == [2, 3, 4]
    held = SHARED / "mbpp" / "mbpp.jsonl"
    if held.is_file():
        rows = {row["task_id"]: row for row in map(json.loads, held.read_text().splitlines())}
        for shot in shots:
            assert {key: rows[shot["task_id"]][key] for key in ("text", "code", "test_list")} == {
                key: shot[key] for key in ("text", "code", "test_list")
            }


def test_tasks_are_found_where_lm_eval_finds_them() -> None:
    from lm_eval import tasks

    folder = Path(tasks.__file__).parent / "arc"
    manager = tasks.TaskManager(include_defaults=False, include_path=folder)
    places = harness._places()
    assert {name for name, place in places.items() if place.is_relative_to(folder)} == set(manager.all_subtasks)
    assert "mmlu" not in places
    assert len(places) > 10_000


def test_tasks_that_run_programs_in_this_process_are_refused() -> None:
    with pytest.raises(
        ValueError, match="lm_eval/humaneval: runs programs without a sandbox; sources humaneval and mbpp"
    ):
        loaded("lm_eval/humaneval", None)


@pytest.mark.parametrize("name", ["wikitext", "ifeval", "gsm8k", "arc_easy"])
def test_which_tasks_of_lm_eval_take_decode_steps(name: str) -> None:
    assert needs_decode(TaskSpec(name="t", source=f"lm_eval/{name}")) == (name in ("ifeval", "gsm8k"))
