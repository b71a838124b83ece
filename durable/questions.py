"""A model asks a human something, and the answer is the call's result.

agent = Agent(tools=[ask_human(timeout=timedelta(hours=4), default="wait until tomorrow")])

A question is an approval of kind `question`: it pauses, is told, escalates and is kept as one. What it waits for is an
answer in place of a yes; a rejection means that somebody declined to answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Self, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from durable.approval_stream import Requested
from durable.approvers import ApprovalTerms
from durable.errors import ConfigurationError, InvalidDecisionError
from durable.escalation import Escalation, OnTimeout
from durable.tools import Tool, ToolContext

MAX_QUESTION: Final = 4_000
MAX_ANSWER: Final = 4_000
MAX_OPTIONS: Final = 20
MAX_OPTION: Final = 200

DESCRIPTION: Final = (
    "Ask a human a question and wait for the answer, which may take long. Offer options where the answer is one of a "
    "few. Ask only what you cannot find out yourself."
)


def _one_line(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be one line of printable text, without blanks around it")
    return text


class QuestionArguments(BaseModel):
    """What a model gives to ask something."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, max_length=MAX_QUESTION, description="What to ask, with all that is needed.")
    options: list[Annotated[str, Field(min_length=1, max_length=MAX_OPTION), AfterValidator(_one_line)]] = Field(
        default_factory=list[str], max_length=MAX_OPTIONS, description="The answers to choose from, if there are any."
    )
    free_text: bool = Field(default=True, description="Whether an answer in other words than the options is taken.")

    @model_validator(mode="after")
    def _can_be_answered(self) -> Self:
        if not self.question.strip():
            raise ValueError("the question is blank")
        if len(set(self.options)) < len(self.options):
            raise ValueError("two options are the same")
        if not self.options and not self.free_text:
            raise ValueError("give options, or take free text")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Tool):
    """A tool whose result is what a human answers. Made by `ask_human`; `default` is the answer when nobody does."""

    default: str | None = None


def ask_human(
    *,
    name: str = "ask_human",
    description: str = DESCRIPTION,
    approvers: Sequence[str] = (),
    timeout: timedelta | None = None,
    default: str | None = None,
    on_timeout: OnTimeout | Escalation = "reject",
    remind_every: timedelta | None = None,
) -> Question:
    """Give a tool with which the model asks a human, with `question`, `options` and `free_text`.

    The result is `{"answer", "answered_by"}`, and `note` where there is one. `approvers` may answer (nobody named means
    everybody). After `timeout`, and the levels of an escalation, the result is `default`, which says that nobody
    answered; without one the call is rejected, or the run halts, as `on_timeout` says. A question whose options leave
    the default out is refused, and the model told so. Raises `ConfigurationError`.
    """
    if default is not None:
        if timeout is None:
            raise ConfigurationError(f"Tool {name!r}: the default is the answer at the deadline: give timeout, too.")
        if not 1 <= len(default.strip()) <= MAX_ANSWER:
            raise ConfigurationError(f"Tool {name!r}: the default must have 1 to {MAX_ANSWER} characters.")
        if "halt" in (on_timeout, on_timeout.then if isinstance(on_timeout, Escalation) else None):
            raise ConfigurationError(f"Tool {name!r}: it halts at the deadline, or has a default, not both.")
    schema = QuestionArguments.model_json_schema()
    return Question(
        name=name,
        description=description,
        function=_answered,
        arguments=_with_default(default),
        parameters={key: value for key, value in schema.items() if key not in ("title", "description")},
        context_parameter="ctx",
        needs_approval=True,
        terms=ApprovalTerms(approvers=approvers),
        approval_timeout=timeout,
        on_timeout=on_timeout,
        remind_every=remind_every,
        default=default,
    )


def _with_default(default: str | None) -> type[QuestionArguments]:
    if default is None:
        return QuestionArguments

    class Arguments(QuestionArguments):
        @model_validator(mode="after")
        def _default_is_offered(self) -> Self:
            if not self.free_text and default not in self.options:
                raise ValueError(f"the options must include {default!r}, which is the answer when nobody answers")
            return self

    return Arguments


def _answered(question: str, options: Sequence[str], free_text: bool, ctx: ToolContext) -> dict[str, Any]:
    """The result, which the approval brings along: running it again gives the same."""
    grant = ctx.approval
    if grant is None or grant.answer is None:
        raise ValueError("the question has no answer")
    if grant.via == "timeout":
        return {"answer": grant.answer, "answered_by": None, "default": True, "note": "Nobody answered in time."}
    note = {"note": grant.note} if grant.note else {}
    return {"answer": grant.answer, "answered_by": grant.by, **note}


def question_of(request: Requested) -> str:
    """The question itself."""
    return str(cast("dict[str, JsonValue]", request.arguments).get("question", ""))


def offered(request: Requested) -> tuple[list[str], bool]:
    """The options of a question, and whether free text is taken."""
    arguments = cast("dict[str, JsonValue]", request.arguments)
    return cast("list[str]", arguments.get("options") or []), bool(arguments.get("free_text", True))


def check_answer(
    request: Requested, answer: str | None, *, id: str, approved: bool, args: dict[str, JsonValue] | None
) -> None:
    """Refuse with `InvalidDecisionError` what does not answer a question, and an answer to what is none."""
    if request.kind != "question":
        if answer is not None:
            raise InvalidDecisionError(id, "it is no question: approve or reject the call")
        return
    options, free_text = offered(request)
    if args is not None:
        raise InvalidDecisionError(id, "a question takes an answer, not arguments", options)
    if not approved:
        if answer is not None:
            raise InvalidDecisionError(id, "who declines to answer gives no answer", options)
        return
    if answer is None:
        raise InvalidDecisionError(id, "it is a question: give an answer, or decline", options)
    if answer in options:
        return
    if not free_text:
        raise InvalidDecisionError(id, "the answer is none of the options", options)
    if not 1 <= len(answer.strip()) <= MAX_ANSWER:
        raise InvalidDecisionError(id, f"an answer has 1 to {MAX_ANSWER} characters", options)
