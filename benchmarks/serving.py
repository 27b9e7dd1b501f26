"""Served tokens a second and time to first token at 1, 8 and 32 clients, beside vLLM's server.

    python benchmarks/serving.py [MODEL] [--clients 1 8 32] [--vllm PYTHON] [--repeats 1]

Every server is a process of its own; the servers of one number of clients are measured one after
the other, in turn, and only one runs at a time. Clients are threads in this process: each sends its
next request when it has read the whole answer to the last one. All ask for the same prompts and the
same number of tokens (``ignore_eos``), streamed. Results go to benchmarks/results/serving.json,
row by row: the same command goes on where the last one ended, --again measures anew.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lock import quiet_machine

HERE = Path(__file__).resolve().parent
START_S = 600
ANSWER_S = 1200


@dataclass(frozen=True)
class Server:
    """How a server is started; the URL is the one it tells, or that of the port it is given."""

    name: str
    command: tuple[str, ...]
    model: str
    port: int = 0


@dataclass(frozen=True)
class Reading:
    """One answer: when its first and its last text came, and how many tokens it has."""

    first_s: float
    total_s: float
    tokens: int


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=4, help="requests of each client")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--prompt-words", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--vllm", default="", help="interpreter of an environment with vllm")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "serving.json")
    given = parser.parse_args(arguments)
    with quiet_machine():
        return run(given)


def run(given: argparse.Namespace) -> int:
    servers = servers_of(given)
    settings = {
        name: getattr(given, name)
        for name in ("model", "rounds", "max_tokens", "prompt_words", "dtype")
    }
    rows = [] if given.again else rows_of(given.out, settings)
    done = {(row["server"], row["clients"], row["repeat"]) for row in rows}
    failed = False
    for repeat in range(given.repeats):
        for count in given.clients:
            for server in servers:
                if (server.name, count, repeat) in done:
                    continue
                try:
                    with running(server) as url:
                        load(url, server, count, 1, given)  # warm: compilation, caches, page faults
                        start = time.perf_counter()
                        readings = load(url, server, count, given.rounds, given)
                        wall = time.perf_counter() - start
                except ServerFault as fault:
                    failed = True
                    print(f"{server.name:8} {count} clients: {fault}", flush=True)
                    continue
                row = figures(server.name, count, readings, wall)
                rows.append({**row, "repeat": repeat})
                print(line_of(row), flush=True)
                keep(given.out, settings, rows)
    return int(failed)


def rows_of(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what an earlier command with the same settings measured."""
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = found["rows"] if found["settings"] == settings else []
    return rows


def keep(path: Path, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"settings": settings, "cores": os.cpu_count(), "rows": rows}
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def servers_of(given: argparse.Namespace) -> list[Server]:
    from educe.models.load import find_folder

    folder = str(find_folder(given.model))
    rows = str(max(given.clients))
    own = (sys.executable, "-m", "educe", "serve", folder, "--port", "0", "--json", "--rows", rows,
           "--dtype", given.dtype)  # fmt: skip
    found = [Server("educe", own, folder)]
    if given.vllm:
        port = free_port()
        peer = (given.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", folder,
                "--port", str(port), "--host", "127.0.0.1", "--dtype", given.dtype,
                "--max-num-seqs", rows, "--max-model-len", "2048")  # fmt: skip
        found.append(Server("vllm", peer, folder, port))
    return found


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


@contextmanager
def running(server: Server) -> Iterator[str]:
    """Start a server; yields its base URL once it answers."""
    # Left alone, vLLM keeps a core for itself and computes on the others.
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        **os.environ,
    }
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            server.command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            yield wait_for(server, process, log)
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            # Its own processes too: one left behind would compute beside the next server.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def wait_for(server: Server, process: subprocess.Popen[str], log: Any) -> str:
    assert process.stdout is not None
    url = f"http://127.0.0.1:{server.port}/v1"
    if not server.port:
        line = process.stdout.readline()
        url = json.loads(line)["url"] if line else url
    else:
        # Nobody reads its output; a full pipe would stop it.
        threading.Thread(target=process.stdout.read, daemon=True).start()
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            log.seek(0)
            sys.exit(f"{server.name} ended with {process.returncode}:\n{log.read()[-2000:]}")
        try:
            with urllib.request.urlopen(url.removesuffix("/v1") + "/health", timeout=5):
                return url
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{server.name} did not answer within {START_S} s")


def load(
    url: str, server: Server, clients: int, rounds: int, given: argparse.Namespace
) -> list[Reading]:
    """Let clients ask, each its own prompts one after the other; return all readings."""

    def client(number: int) -> list[Reading]:
        return [
            ask(url, server.model, prompt_of(number, turn, given.prompt_words), given.max_tokens)
            for turn in range(rounds)
        ]

    with ThreadPoolExecutor(clients) as pool:
        return [reading for readings in pool.map(client, range(clients)) for reading in readings]


def prompt_of(client: int, turn: int, words: int) -> str:
    """Return a prompt that no other request begins with, so that no cache helps anybody."""
    from educe.core.seeds import python_random

    rng = python_random("serving-benchmark", client, turn)
    listed = ("river", "seven", "blue", "because", "market", "of", "the", "and", "runs", "house",
              "never", "light", "under", "twelve", "paper", "asks")  # fmt: skip
    return " ".join(rng.choice(listed) for _ in range(words))


def ask(url: str, model: str, prompt: str, max_tokens: int) -> Reading:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_S)
    body = {
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 1.0,
        "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "seed": 1,
    }  # fmt: skip
    headers = {"Content-Type": "application/json"}
    start = time.perf_counter()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"{url} answered {response.status}: {response.read()[:500]!r}")
        return read_stream(response, start)
    finally:
        connection.close()


class ServerFault(Exception):
    """A server sent an error in the middle of an answer."""


def read_stream(response: http.client.HTTPResponse, start: float) -> Reading:
    first = last = 0.0
    tokens = 0
    for raw in response:
        line = raw.decode().strip()
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        if "choices" not in chunk:
            raise ServerFault(str(chunk.get("error", chunk))[:500])
        if any(choice["text"] for choice in chunk["choices"]):
            last = time.perf_counter()
            first = first or last
    return Reading(first - start, last - start, tokens)


def figures(name: str, clients: int, readings: Sequence[Reading], wall: float) -> dict[str, Any]:
    firsts = [r.first_s for r in readings]
    gaps = [(r.total_s - r.first_s) / max(1, r.tokens - 1) for r in readings]
    return {
        "server": name,
        "clients": clients,
        "requests": len(readings),
        "tokens": sum(r.tokens for r in readings),
        "tokens_per_s": sum(r.tokens for r in readings) / wall,
        "first_token_s": {f"p{q}": quantile(firsts, q) for q in (50, 95, 99)},
        "between_tokens_s": statistics.median(gaps),
    }


def quantile(values: Sequence[float], percent: int) -> float:
    """Return the smallest value that at least ``percent`` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def line_of(row: dict[str, Any]) -> str:
    first = "  ".join(f"{name} {1000 * value:.0f}" for name, value in row["first_token_s"].items())
    return (
        f"{row['server']:6} {row['clients']:3} clients  {row['tokens_per_s']:8.1f} tokens/s  "
        f"first token, ms: {first}  between tokens, ms: {1000 * row['between_tokens_s']:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
