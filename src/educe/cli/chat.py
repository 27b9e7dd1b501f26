"""``educe chat MODEL_OR_RUN``: talk to a model in the terminal."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "chat",
        help="talk to a model or to the result of a run",
        description="Talk to a model, a line a turn. /reset starts again, /quit (or the end of "
        "the input) ends.",
    )
    parser.add_argument("model", metavar="MODEL_OR_RUN", help="model name, model folder or run")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--max-tokens", type=int, default=256, help="tokens a reply (default 256)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--system", help="system message")
    parser.set_defaults(handler=handler)


def handler(arguments: argparse.Namespace) -> int:
    """Read lines until end of file or /quit; /reset starts a new conversation."""
    from educe.core.errors import EduceError
    from educe.core.protocols import GenerateRequest, SamplingParameters
    from educe.core.seeds import derive
    from educe.core.types import Message
    from educe.engines.embedded import EmbeddedEngine
    from educe.models.load import chat_format, load
    from educe.observability.terminal_text import printable
    from educe.session import model_of, set_threads

    if arguments.temperature < 0 or arguments.max_tokens < 1:
        raise EduceError(
            f"--temperature must be at least 0 and --max-tokens at least 1, got "
            f"{arguments.temperature:g} and {arguments.max_tokens}"
        )
    set_threads(0)
    name, label = model_of(arguments.model)
    model = load(name, announce=partial(print, file=sys.stderr))
    chat = chat_format(model, system_prompt=arguments.system)
    engine = EmbeddedEngine(model, stop_token_ids=chat.stop_token_ids, decode=chat.decode)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        print(f"{label}: /reset starts again, /quit ends")
    transcript: list[Message] = []
    context: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    turn = 0
    while True:
        try:
            line = input("you: " if is_terminal else "")
        except EOFError:
            return 0
        if line.strip() == "/quit":
            return 0
        if line.strip() == "/reset":
            transcript, context = [], ()
            continue
        said = Message("user", line)
        if transcript:
            context = chat.next_context(context, last, transcript, [said])
        else:
            context = chat.prompt_tokens([said])
        transcript.append(said)
        room = model.context_length - len(context)
        if room < 1:
            print("the conversation has outgrown the model's context; /reset starts again")
            transcript, context = [], ()
            continue
        parameters = SamplingParameters(
            min(arguments.max_tokens, room),
            arguments.temperature,
            seed_key=derive("chat", arguments.seed, turn),
        )
        (done,) = engine.generate([GenerateRequest(str(turn), context, parameters)])
        answer = done.text.strip()
        if sys.stdout.isatty():  # escape sequences are the model's, not the terminal's
            answer = printable(answer)
        print(f"{label}: {answer}" if is_terminal else answer, flush=True)
        last = done.token_ids
        transcript.append(chat.parse(done.text))
        turn += 1
