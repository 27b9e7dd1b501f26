"""``educe serve MODEL_OR_RUN``: the model behind OpenAI's HTTP interface."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from educe.core.errors import EduceError
from educe.core.strict_json import strict_json

if TYPE_CHECKING:
    from educe.serving.review_gate import ReviewGate


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP as OpenAI does",
        description="Serve a model, or the result of a run: /v1/chat/completions, /v1/completions "
        "(with echo: likelihoods), /v1/models, /health, /metrics. Needs educe[serve]. On another "
        "address than loopback, clients need the token in EDUCE_SERVE_TOKEN or --token-file.",
    )
    parser.add_argument("model", metavar="MODEL_OR_RUN", help="model name, model folder or run")
    parser.add_argument("--host", default="127.0.0.1", help="address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one (default 8000)")
    parser.add_argument("--name", help="the model's id for clients (default its own name)")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="token of the clients")
    parser.add_argument("--json", action="store_true", help="tell the address as JSON")
    _add_engine_arguments(parser.add_argument_group("engine"))
    _add_review_arguments(parser.add_argument_group("review"))
    parser.set_defaults(handler=handler)


def _add_engine_arguments(group: Any) -> None:
    add = group.add_argument
    add("--rows", type=int, default=32, help="completions at once (default 32)")
    add("--queue", type=int, default=256, help="completions that may wait (default 256); "
        "then clients get 429")  # fmt: skip
    add("--context", type=int, default=0, metavar="TOKENS", help="longest prompt plus completion "
        "(default the model's)")  # fmt: skip
    add("--exact", action="store_true", help="a seed gives the same text whatever else runs "
        "(fp32, slower)")  # fmt: skip
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--threads", type=int, default=0, help="of torch (default one per core)")
    add("--system", help="system message where a conversation has none")


def _add_review_arguments(group: Any) -> None:
    add = group.add_argument
    add("--review", action="store_true", help="withhold unsafe answers; nothing leaves before it "
        "was reviewed")  # fmt: skip
    add("--review-classifier", metavar="FILE", default="", help="of `educe safety train`")
    add("--review-words", metavar="FILE", default="", help="word list, one entry a line")
    add("--review-queue", metavar="FILE", type=Path, help="keep for people what layers disagree "
        "on, and 1 %% of all answers")  # fmt: skip


def handler(arguments: argparse.Namespace) -> int:
    """Load, listen, say where, and serve until told to stop."""
    from educe.serving.server import check_extra, listen, run_server, url_of

    check_extra()
    token = read_token(arguments.token_file)
    gate = review_gate(arguments)
    # Before the model is loaded: a taken port is known at once.
    bound = listen(arguments.host, arguments.port, token)
    with bound:
        app, name = _application(arguments, token, gate)
        _say(arguments, url_of(bound), name, token, gate)
        run_server(app, bound)
    return 0


def _application(
    arguments: argparse.Namespace, token: str, gate: ReviewGate | None
) -> tuple[Any, str]:
    from educe.models.load import chat_format, load
    from educe.serving.build import ServeSettings, serve_model
    from educe.session import model_of, set_threads, weights_digest

    set_threads(arguments.threads)
    folder, label = model_of(arguments.model)
    if arguments.exact and arguments.dtype != "float32":
        raise EduceError("--exact needs --dtype float32")
    model = load(
        folder,
        dtype=arguments.dtype,
        device=arguments.device,
        announce=partial(print, file=sys.stderr),
    )
    name = arguments.name or label
    settings = ServeSettings(
        name,
        aliases=tuple({arguments.model, label} - {name}),
        max_rows=arguments.rows,
        max_waiting=arguments.queue,
        exact=arguments.exact,
        context_length=arguments.context,
        identity=weights_digest(model),
        token=token,
    )
    chat = chat_format(model, system_prompt=arguments.system)
    prepare = partial(set_threads, arguments.threads)
    return serve_model(model, chat, settings, gate=gate, prepare=prepare), name


def _say(
    arguments: argparse.Namespace, url: str, name: str, token: str, gate: ReviewGate | None
) -> None:
    layers = [] if gate is None else [layer.name for layer in gate.reviewer.layers]
    if arguments.json:
        told = {"url": url, "model": name, "token": bool(token), "review": layers}
        print(strict_json(told), flush=True)
        return
    needs = "clients need the token" if token else "this machine's programs only, no token"
    print(f"{name}: {url} ({needs})")
    if layers:
        print(f"review: {', '.join(layers)}; answers leave whole, streams too")
    print("Ctrl-C ends", flush=True)


def read_token(file: Path | None) -> str:
    """Return the token of a file or of the environment; empty without one.

    Raises:
        EduceError: the file cannot be read or is empty.
    """
    from educe.serving.gatekeeper import TOKEN_VARIABLE

    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        token = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise EduceError(f"--token-file: {error}") from error
    if not token:
        raise EduceError(f"--token-file: {file} is empty")
    return token


def review_gate(arguments: argparse.Namespace) -> ReviewGate | None:
    """Return the review that was asked for, None without ``--review``.

    Raises:
        EduceError: options of the review without it, or a file that cannot be read.
    """
    options = {
        "--review-classifier": arguments.review_classifier,
        "--review-words": arguments.review_words,
        "--review-queue": arguments.review_queue,
    }
    if not arguments.review:
        given = [name for name, value in options.items() if value]
        if given:
            raise EduceError(f"{given[0]} belongs to the review: add --review")
        return None
    from educe.config.review_settings import ReviewSettings
    from educe.rewards.review import ReviewQueue, build_reviewer
    from educe.serving.review_gate import ReviewGate

    layers = ["rules", "injection", "code"]
    layers += ["words"] if arguments.review_words else []
    layers += ["classifier"] if arguments.review_classifier else []
    settings = ReviewSettings(
        mode="stop",
        layers=tuple(layers),
        words=arguments.review_words,
        classifier=arguments.review_classifier,
    )
    queue = None if arguments.review_queue is None else ReviewQueue(arguments.review_queue)
    # A queue wants to know where layers disagree: all of them are asked.
    reviewer = build_reviewer(settings)
    reviewer.ask_all = queue is not None
    return ReviewGate(reviewer, queue=queue)
