"""Serve recorded rollouts over HTTP, as an inference engine would.

A stand-in for a GPU with vLLM: it answers ``POST /inference/v1/generate`` with what was recorded
for the prompt, in the fields that vLLM 0.33 has for that endpoint; with ``"stream": true`` as
a stream of server-sent events. Run from the root of the repository, ``python examples/served.py``
prints its address, and serves until it is interrupted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

from rollouts import load_rollouts

Turn = tuple[list[int], list[int], list[float], float]
"""Prompt, response, log-probabilities and reward."""


def first_turns() -> list[Turn]:
    """Return the first turn of each recorded trajectory."""
    rollouts = load_rollouts()
    columns = (rollouts.prompts, rollouts.responses, rollouts.logprobs, rollouts.rewards)
    is_first = [True, *rollouts.is_last_step[:-1]]  # of its trajectory
    turns = zip(*columns, is_first, strict=True)
    return [(*turn, rewards[-1]) for *turn, rewards, first in turns if first]


class Engine(BaseHTTPRequestHandler):
    """Answers requests by recorded samples."""

    protocol_version = "HTTP/1.1"
    samples: dict[tuple[int, ...], list[Turn]]

    def do_POST(self) -> None:
        """Answer with the samples of a prompt."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = request["token_ids"]
        choices = [
            choice(index, *turn[1:3]) for index, turn in enumerate(self.samples[tuple(prompt)])
        ]
        body = {"request_id": "recorded", "prompt_token_ids": prompt, "choices": choices}
        is_stream = request.get("stream", False)
        content = events(body) if is_stream else json.dumps(body)
        self.send_response(200)
        kind = "text/event-stream" if is_stream else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


def choice(index: int, ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    """Return a sample in the fields of vLLM."""
    content = [
        {"token_id": one, "logprob": value, "rank": 1, "top_logprobs": []}
        for one, value in zip(ids, logprobs, strict=True)
    ]
    sampled = {"token_ids": ids, "logprobs": {"content": content}}
    return {"index": index, **sampled, "finish_reason": "stop", "stop_reason": None}


def events(body: dict[str, Any]) -> str:
    """Return a response as a stream: the prompt with the first event, then token by token."""
    parts = []
    for whole in body["choices"]:
        content, count = whole["logprobs"]["content"], len(whole["token_ids"])
        for at, (one, entry) in enumerate(zip(whole["token_ids"], content, strict=True)):
            reason = "stop" if at == count - 1 else None
            part = {"token_ids": [one], "logprobs": {"content": [entry]}, "finish_reason": reason}
            parts.append({"request_id": "recorded", "choices": [{"index": whole["index"], **part}]})
    parts[0]["prompt_token_ids"] = body["prompt_token_ids"]
    return "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"


@contextmanager
def engine() -> Iterator[str]:
    """Run the server in a process of its own; yields its address."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def generate(address: str, prompt: list[int], **options: Any) -> bytes:
    """Ask the server for samples of a prompt; returns the bytes of its response."""
    request = {"token_ids": prompt, "sampling_params": {"logprobs": 0}, **options}
    url = f"{address}/inference/v1/generate"
    with urlopen(Request(url, json.dumps(request).encode()), timeout=60) as response:
        found: bytes = response.read()
    return found


def main() -> None:
    """Serve."""
    Engine.samples = {}
    for turn in first_turns():
        Engine.samples.setdefault(tuple(turn[0]), []).append(turn)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
