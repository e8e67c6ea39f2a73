"""The simulated machines of `python -m benchmarks hosts`: an engine on one machine, and engines
with two ranks over loopback and over a relay. Each library has one thread."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.protocol.options import BackgroundPolicy, Mode, Sampling
from app.protocol.stats import Phase
from benchmarks.harness import Options, Run
from benchmarks.hosts_on_paper import LinkSpeed
from benchmarks.relay import LOOPBACK, Relay
from benchmarks.shapes import save_target

if TYPE_CHECKING:
    from multiprocessing.connection import Connection as Pipe

    from app.extras.hosts.cluster import Cluster
    from app.protocol.commands import Load
    from app.protocol.stats import Statistics

STEP = 256
"""Tokens of a prefill step; fixed, so that it is the same for all."""
SLOW = LinkSpeed(1e-3, 125e6)
"""The relay's link: 1 ms one way, 1 Gb/s."""
ONE, LOOP, SLOWED = "one machine", "two, loopback", "two, 1 ms and 1 Gb/s"
MODES = {"in full": Mode.FULL, "sparse": Mode.SPARSE}
TOKEN = "token"
ANSWER_TOKENS = 9
"""Tokens of a second answer, which measures the time per token."""
KEY = "bench"
QUESTION = "What does it say?"
END_SECONDS, ASK_SECONDS = 60.0, 300.0
Ask = Callable[..., Any]
"""(name of a machine, a key of MODES or TOKEN, prompt length) -> Run; ("link",) -> (latency, rate)
of the slow link."""


@contextmanager
def machines(folder: str, options: Options) -> Iterator[Ask]:
    """Start all engines in a process with one thread per library. Yields a function that runs turns
    on them."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    spawn = multiprocessing.get_context("spawn")
    pipe, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, folder, options), daemon=True)
    try:
        process.start()
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before
    theirs.close()

    def ask(*what: Any) -> Any:
        pipe.send(what)
        if not pipe.poll(ASK_SECONDS):
            raise RuntimeError("a machine does not answer")
        found = pipe.recv()
        if isinstance(found, Exception):
            raise found
        return found

    try:
        ask("ready")
        yield ask
    finally:
        pipe.close()
        process.join(END_SECONDS)
        process.kill()


def _serve(pipe: Pipe, folder: str, options: Options) -> None:
    """Answer requests until the pipe is closed."""
    from app.engine.backend import blas

    blas.load_openblas()
    from app.engine.backend import mlx_patches

    mlx_patches.install()
    with ExitStack() as stack:
        running: dict[str, Machine] = {}
        while True:
            try:
                name, *more = pipe.recv()
            except EOFError:
                return
            try:
                if name == "ready":
                    save_target(Path(folder), options.shape, options.scale)
                    for which, link in ((ONE, None), (LOOP, None), (SLOWED, SLOW)):
                        ranks = 1 if which == ONE else 2
                        machine = Machine(folder, ranks, link, options.keep)
                        running[which] = stack.enter_context(machine)
                    pipe.send(True)
                elif name == "link":
                    pipe.send(running[SLOWED].link)
                else:
                    pipe.send(running[name].run(*more))
            except Exception as error:  # re-raised in the parent
                pipe.send(error)


class Machine:
    """An engine whose target is on one machine, or on two ranks over loopback or a slow `link`."""

    def __init__(self, folder: str, ranks: int, link: LinkSpeed | None, keep: float) -> None:
        self._folder, self._ranks, self._slow, self._keep = folder, ranks, link, keep
        self._stack = ExitStack()
        self._cluster: Cluster | None = None
        self.link: tuple[float, float] = (0.0, 0.0)
        """(latency, rate) as the app measures them."""

    def __enter__(self) -> Machine:
        from app.chat.engine_session import EngineSession
        from app.engine.engine import MlxEngine
        from app.extras.hosts.control import look_at_hosts
        from app.extras.hosts.loading import load_sharded
        from app.extras.hosts.shard import ShardProcess
        from app.extras.hosts.worker import Worker
        from app.protocol.commands import CachePolicy, Load
        from app.protocol.hosts import Host, Hosts

        command, relay = Load(self._folder), None
        ShardProcess.MODULE = "benchmarks.counted_shard"
        if self._ranks > 1:
            worker = Worker(LOOPBACK, 0, KEY, lambda line: None)
            threading.Thread(target=worker.run, daemon=True).start()
            self._stack.callback(worker.close)
            port = worker.port
            if self._slow is not None:
                relay = self._stack.enter_context(Relay(self._slow.latency, self._slow.rate))
                port = relay.open(0, 1, port)
            hosts = Hosts((Host(LOOPBACK, port, KEY),))
            _, other = look_at_hosts(hosts)
            self.link = other.latency or 0.0, other.rate or 0.0
            command = replace(command, hosts=hosts)
        connect = partial(self._connect, relay)
        engine = MlxEngine(STEP, load_spread=partial(load_sharded, connect))
        policy = CachePolicy(BackgroundPolicy.OFF, share_prefixes=False)
        self._session = self._stack.enter_context(EngineSession(engine, policy))
        self._session.load(command)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _connect(self, relay: Relay | None, command: Load, stopped: Any) -> Cluster:
        from app.extras.hosts.cluster import Cluster

        kind = Cluster if relay is None else relayed(relay)
        self._cluster = kind(command, stopped)
        return self._cluster

    def run(self, mode: str, length: int) -> Run:
        """Measure a turn to its first token in one of MODES, or (TOKEN) each further token."""
        if mode in MODES:
            found, exchanged = self._ask(length, MODES[mode], 1)
            seconds = {time.phase: time.seconds for time in found.phases}
            prefill, first = seconds.get(Phase.PREFILL, 0.0), seconds.get(Phase.DECODE, 0.0)
            return {
                "seconds": found.ttft,
                "target": prefill + first,
                "other": max(found.ttft - prefill - first, 0.0),
                "prompt": found.prompt_tokens,
                "read": found.read_tokens,
                **exchanged,
            }
        _, before = self._ask(length, Mode.SPARSE, 1)
        answer, whole = self._ask(length, Mode.SPARSE, ANSWER_TOKENS)
        more = max(answer.generated_tokens - 1, 1)
        run: Run = {name: (whole[name] - before[name]) / more for name in before}
        return run | {"seconds": answer.decode_seconds / more}

    def _ask(self, length: int, mode: Mode, tokens: int) -> tuple[Statistics, Run]:
        """The statistics of a turn and what was exchanged: bytes and number of the layers' sums,
        and bytes on the control connection."""
        from app.extras.hosts.sharded import Operation
        from app.protocol import commands
        from app.protocol.events import Finished
        from app.protocol.prompt import Document, Message, Role

        message = Message(Role.USER, QUESTION, (Document("text", _text(length)),))
        sampling = Sampling(max_tokens=tokens, temperature=0.0)
        ask = commands.Ask((message,), mode, self._keep, sampling)
        cluster, taken = self._cluster, Operation("traffic", 0)
        before = 0
        if cluster is not None:
            cluster.run(taken)
            before = cluster.ranks[1].sent_bytes
        *_, last = self._session.run(ask)
        if not isinstance(last, Finished) or last.statistics is None or last.statistics.fallback:
            raise RuntimeError(f"the turn was not answered as it was asked: {last}")
        exchanged: Run = {}
        if cluster is not None:
            control = cluster.ranks[1].sent_bytes - before
            found, *_ = cluster.run(taken)
            exchanged = {"bytes": found["bytes"], "sums": found["sums"], "control": control}
        return last.statistics, exchanged


def relayed(relay: Relay) -> type[Cluster]:
    """A Cluster class whose ranks exchange their sums through the relay."""
    from app.extras.hosts.cluster import Cluster

    class Relayed(Cluster):
        def ring_file(self, rank: int, ring: list[str]) -> str:
            return super().ring_file(rank, through(relay, rank, ring))

    return Relayed


def through(relay: Relay, rank: int, ring: list[str]) -> list[str]:
    """The addresses of all ranks, with this rank's right neighbour replaced by the relay."""
    right = (rank + 1) % len(ring)
    port = int(ring[right].rpartition(":")[2])
    return [*ring[:right], f"{LOOPBACK}:{relay.open(rank, right, port)}", *ring[right + 1 :]]


@cache
def _text(length: int) -> str:
    """A text of this many tokens."""
    from tokenizers import Tokenizer

    from app.chat.sample import sample
    from app.models.embedded import target_path

    text = sample().text
    encoded = Tokenizer.from_file(str(target_path() / "tokenizer.json")).encode(text)
    return text[: encoded.offsets[min(length, len(encoded.offsets)) - 1][1]]
