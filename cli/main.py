"""The command `durable`: its words, and how what it found is shown."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from cli import commands
from cli.api import Api, CommandError
from cli.codes import MEANING
from cli.target import connect
from cli.text import clean

STATUSES = ("pending", "approved", "rejected", "expired", "cancelled")


def main() -> int:
    return run(sys.argv[1:])


def run(
    arguments: Sequence[str],
    *,
    connect: Callable[..., Api] = connect,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Carry one command out, and give its exit code. Answers go to `out`, errors to `err`."""
    out, err = out or sys.stdout, err or sys.stderr
    given = parser().parse_args(arguments)
    if given.url is None and given.stack is None:
        given.parser.error("which deployment? Give --url or --stack")
    try:
        api = connect(url=given.url, stack=given.stack, region=given.region, profile=given.profile)
        shown = given.command(api, given)
    except CommandError as error:
        print(_error_text(error, as_json=given.json), file=err)
        return error.code
    except KeyboardInterrupt:
        return 130
    print(json.dumps(shown.body, indent=2) if given.json else clean(shown.text), file=out)
    return shown.code


def parser() -> argparse.ArgumentParser:
    codes = "\n".join(f"  {code.value}  {meaning}" for code, meaning in MEANING.items())
    top = argparse.ArgumentParser(
        prog="durable",
        description="Start, look at, fork, compare, cut and delete the runs of a deployment, and decide its approvals.",
        epilog=f"exit codes:\n{codes}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = top.add_subparsers(required=True, metavar="COMMAND")
    runs = words.add_parser("runs", help="start, show, resume and abort runs")
    _runs(runs.add_subparsers(required=True, metavar="COMMAND"))
    _sessions(words)
    asked = words.add_parser("approvals", help="list, show and decide approvals")
    _approvals(asked.add_subparsers(required=True, metavar="COMMAND"))
    return top


def _runs(words: Any) -> None:
    start = _command(words, "start", commands.start, "send a message to a session, new or not")
    start.add_argument("session")
    start.add_argument("input")
    start.add_argument("--key", help="Idempotency-Key: the same request is carried out once, however often it is sent")
    _running(start)
    show = _command(words, "show", commands.show, "how a session stands")
    show.add_argument("session")
    show.add_argument("--messages", action="store_true", help="the conversation, with the ids of its tool calls")
    show.add_argument("--message", type=int, metavar="N", help="one message as JSON, however large; the first is 0")
    resume = _command(words, "resume", commands.resume, "carry an unfinished run on")
    resume.add_argument("session")
    _running(resume)
    abort = _command(words, "abort", commands.abort, "stop an unfinished run; what it has done is kept")
    abort.add_argument("session")
    _waiting(abort)


def _sessions(words: Any) -> None:
    history = _command(words, "history", commands.history, "the saves of a session, newest first")
    history.add_argument("session")
    history.add_argument("--limit", type=int)
    history.add_argument("--cursor")
    history.add_argument("--full", action="store_true", help="whole checkpoints (with --json)")
    history.add_argument("--revision", type=int, help="one save with its messages")
    fork = _command(words, "fork", commands.fork, "a new session from a step of another one")
    fork.add_argument("session")
    place = fork.add_mutually_exclusive_group(required=True)
    place.add_argument("--step", type=int, help="the newest save of this step")
    place.add_argument("--revision", type=int, help="this save")
    fork.add_argument("--id", help="the new session's id (default: <session>.fork-<n>)")
    fork.add_argument("--key", help="Idempotency-Key: asked for twice, the fork is made once")
    fork.add_argument("--messages", metavar="FILE", help="another transcript, as JSON")
    fork.add_argument("--state", metavar="JSON", help="another business state")
    fork.add_argument("--tool-result", metavar="CALL_ID=JSON", help="another result for one call")
    fork.add_argument("--tool-error", action="store_true", help="that result is a failure")
    fork.add_argument("--input", help="a message behind what is pending")
    fork.add_argument("--resume", action="store_true", help="carry the fork on at once")
    _running(fork)
    truncate = _command(words, "truncate", commands.truncate, "cut a session back to its first messages")
    truncate.add_argument("session")
    truncate.add_argument("messages", type=int, help="how many messages stay")
    _busy(truncate)
    delete = _command(
        words, "delete", commands.delete, "delete a session with all that is kept of it; its run is stopped"
    )
    delete.add_argument("session")
    compare = _command(words, "compare", commands.compare, "where two sessions part")
    compare.add_argument("a")
    compare.add_argument("b")


def _approvals(words: Any) -> None:
    listing = _command(words, "list", commands.list_approvals, "approvals that wait, or others by --status")
    listing.add_argument("--status", choices=STATUSES, default="pending")
    listing.add_argument("--limit", type=int)
    listing.add_argument("--cursor")
    _command(words, "show", commands.show_approval, "one approval and what happened to it").add_argument("id")
    approve = _command(words, "approve", commands.approve, "let the call run")
    approve.add_argument("id")
    approve.add_argument("--args", metavar="JSON", help="run it with these arguments instead")
    approve.add_argument("--digest", help="of the arguments that you have looked at, where somebody has changed them")
    answer = _command(words, "answer", commands.answer, "answer a question; who declines to answer rejects it")
    answer.add_argument("id")
    answer.add_argument("answer", help="one of the options, or other words where the question takes them")
    reject = _command(words, "reject", commands.reject, "the call never runs, and the model is told why")
    reject.add_argument("id")
    for decision in (approve, answer, reject):
        decision.add_argument("--note", help="what the record, and the model after a rejection, is told")


def _command(words: Any, name: str, command: commands.Command, about: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = words.add_parser(name, help=about, description=about)
    made.set_defaults(command=command, parser=made)
    deployment = made.add_argument_group("deployment")
    where = deployment.add_mutually_exclusive_group()
    where.add_argument("--url", help="the API's base URL, with its stage")
    where.add_argument("--stack", help="the CloudFormation stack, whose output ApiUrl is used")
    deployment.add_argument("--region")
    deployment.add_argument("--profile", help="of the AWS configuration")
    made.add_argument("--json", action="store_true", help="the API's JSON, for programs")
    return made


def _running(made: argparse.ArgumentParser) -> None:
    made.add_argument("--async", dest="respond_async", action="store_true", help="do not wait for the answer")
    _busy(made)
    _waiting(made)


def _busy(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--on-busy",
        choices=("reject", "wait"),
        help="while somebody else runs the session: fail at once (the default), or wait up to half a minute for it",
    )


def _waiting(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="how long to wait for a run that goes on without you"
    )


def _error_text(error: CommandError, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({**error.body, "exit_code": int(error.code)}, indent=2)
    return clean(f"durable: {error}" + (f"\n{error.hint}" if error.hint else ""))
