"""Structured output: the final answer is validated, told to be corrected once, and then the run says that it is not."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from durable import FinishReason, ModelTurn, Status
from durable.outcome import result_of
from tests.support.runs import Clock, fresh_agent, memory_store, run
from tests.support.sessions import asked, crashes, dying, look, stored, texts
from tests.support.transcripts import says


class Offer(BaseModel):
    price: int
    for_whom: str = "anyone"


@dataclass
class Point:
    x: int
    y: int


GOOD, BAD = '{"price": 5}', '{"price": "much"}'


def agent_for(answers: Any, store: Any = None, **options: Any) -> Any:
    return fresh_agent(answers, [look], store or memory_store(clock=Clock()), output_type=Offer, **options)


@pytest.mark.parametrize(
    ("output_type", "answer", "output"),
    [
        (Offer, GOOD, Offer(price=5)),
        (Offer, ' {"for_whom": "bob", "price": 5}\n', Offer(price=5, for_whom="bob")),
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (list[int], "[1, 2]", [1, 2]),
        (int | None, "null", None),
        (dict[str, Any], "{}", {}),
    ],
)
def test_a_valid_answer_is_the_output(output_type: Any, answer: str, output: Any) -> None:
    """An answer that validates as the output type is `result.output`; the text stays as the model wrote it."""
    result = run(fresh_agent([answer], [], None, output_type=output_type).send("go"))
    assert (result.finish_reason, result.output, result.text, result.steps) == (FinishReason.STOP, output, answer, 1)


def test_an_agent_without_an_output_type_has_no_output() -> None:
    """Without an output type the answer is a text and nothing else."""
    assert run(fresh_agent([GOOD], [], None).send("go")).output is None


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (BAD, "price: Input should be a valid integer"),
        ("{}", "price: Field required"),
        ("Five.", "answer: Invalid JSON"),
    ],
)
def test_a_wrong_answer_is_corrected_once(wrong: str, fault: str) -> None:
    """The model is told what is wrong, never shown the value, and its second answer counts."""
    store = memory_store(clock=Clock())
    agent = agent_for([wrong, GOOD], store)
    result = run(agent.send("go", session_id="s"))
    assert (result.finish_reason, result.output, result.steps, asked(agent)) == (
        FinishReason.STOP,
        Offer(price=5),
        2,
        2,
    )
    told = agent.provider.requests[1].messages[-1]
    assert told.role == "user"
    assert fault in told.content
    assert "much" not in told.content
    assert texts(stored(store).messages) == ["go", wrong, told.content, GOOD]
    assert stored(store).committed == 4


def test_an_answer_that_is_wrong_twice_is_output_invalid() -> None:
    """After the second wrong answer the run is finished as `output-invalid`: the text is there, the output is not."""
    store = memory_store(clock=Clock())
    agent = agent_for([BAD, BAD, GOOD], store)
    result = run(agent.send("go", session_id="s"))
    assert (result.finish_reason, result.output, result.text) == (FinishReason.OUTPUT_INVALID, None, BAD)
    assert (asked(agent), stored(store).status) == (2, Status.FINISHED)


def test_the_next_turn_may_be_corrected_again() -> None:
    """Each run has its own second chance."""
    store = memory_store(clock=Clock())
    run(agent_for([BAD, BAD], store).send("go", session_id="s"))
    result = run(agent_for([BAD, BAD, BAD, GOOD], store).send("again", session_id="s"))
    assert (result.finish_reason, result.output) == (FinishReason.STOP, Offer(price=5))


@pytest.mark.parametrize(("at", "questions"), [(0, 1), (1, 0)])
def test_a_crash_between_the_two_answers(at: int, questions: int) -> None:
    """The wrong answer and what the model is told are one save: a resume asks for the correction and for no third."""
    for second, reason in ((GOOD, FinishReason.STOP), (BAD, FinishReason.OUTPUT_INVALID)):
        store = memory_store(clock=Clock())
        crashes(agent_for([BAD, second], dying(store, at)).send("go", session_id="s"))
        agent = agent_for([BAD, second], store)
        result = run(agent.send("go" if at == 0 else [], session_id="s"))
        assert (result.finish_reason, asked(agent)) == (reason, questions)
        assert (result.output is None) is (second == BAD)


def test_a_correction_after_tools() -> None:
    """Only the final answer is validated: what the model says beside its calls is free, and tools may follow."""
    answers = [("look", {}), BAD, ("look", {}), GOOD]
    result = run(agent_for(answers).send("go", session_id="s"))
    assert (result.output, result.tool_calls, result.steps) == (Offer(price=5), 2, 4)


def test_an_answer_that_was_cut_is_not_validated() -> None:
    """A run that finished for another reason than `stop` has no output, and the model is not asked again."""
    cut = ModelTurn(message=says('{"price": 5'), finish_reason=FinishReason.LENGTH)
    whole = ModelTurn(message=says(GOOD), finish_reason=FinishReason.LENGTH)
    for answer in (cut, whole):
        agent = agent_for([answer])
        result = run(agent.send("go", session_id="s"))
        assert (result.finish_reason, result.output, asked(agent)) == (FinishReason.LENGTH, None, 1)


@pytest.mark.parametrize("limits", [{"max_steps": 1}, {"max_tokens": 1}])
def test_without_a_step_left_a_wrong_answer_is_final(limits: Any) -> None:
    """A run that may not ask again does not pretend to: it is finished as `output-invalid`, with the answer last."""
    agent = agent_for([BAD, GOOD], **limits)
    result = run(agent.send("go", session_id="s"))
    assert (result.finish_reason, result.text, asked(agent)) == (FinishReason.OUTPUT_INVALID, BAD, 1)
    assert texts(result.messages) == ["go", BAD]


def test_a_recorded_answer_is_given_as_output_again() -> None:
    """A finished run that is asked again gives the same output, and None where today's type does not take it."""
    store = memory_store(clock=Clock())
    run(agent_for([GOOD], store).send("go", session_id="s"))
    assert run(agent_for([], store).send([], session_id="s")).output == Offer(price=5)
    changed = fresh_agent([], [], store, output_type=list[int])
    again = run(changed.send([], session_id="s"))
    assert (again.finish_reason, again.output, again.text) == (FinishReason.STOP, None, GOOD)
    assert result_of(stored(store)).output is None
