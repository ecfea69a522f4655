"""Faults at random moments, then a rerun: `make chaos KILLS=100` prints how often, and what was lost.

evaluate, train   kill -9 of the process, which is started again
disk              from that moment on no file of an evaluation can grow beyond a few kB (RLIMIT_FSIZE): it has to stop
                  with a `RunError`, and is started again with enough space
ranks             kill -9 of one of two processes; `torchrun --max-restarts` alone has to finish the run
nodes             kill -9 of everything on one of two nodes, two torchruns on loopback; what has ended is started again

Lost are runs that fail, hang, or do not end in the bytes of a run that was left alone.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation"), str(HERE / "training")]

import killing  # noqa: E402
from killing import EVALUATE, Work, digest  # noqa: E402
from runs import BALL, problem, subprocess_environment  # noqa: E402
from small_training import small  # noqa: E402

from recarc import ARC, evaluate  # noqa: E402
from recarc.training.checkpoint import STATE  # noqa: E402

PARTS = {"evaluate": 1.0, "train": 0.5, "disk": 0.2, "ranks": 0.2, "nodes": 0.1}  # and their share of the kills
COUNTS = ("kills", "halfway", "runs", "lost", "leftovers")
SLICE = {"evaluate": 10, "train": 5, "disk": 10, "ranks": 5, "nodes": 5}  # kills that one process does
PORT = 21000  # below those that the system gives away
HUNG = 240.0  # seconds after its last kill


def learn(out: Path) -> None:
    small("bat", out=out, epochs=1.5, arch_options={"width": 4, "batch_norm": True}, checkpoint_minutes=0.0)


TRAIN = Work(
    learn,
    lambda out: list(out.glob("*.safetensors")),
    lambda out: (out.with_name(out.name + ".part") / STATE).exists(),
)


def fill_disk(pid: int) -> None:
    most = random.choice((0, 100, 1000, 5000))
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def alone(part: str, root: Path, wanted: int) -> Counter[str]:
    """Processes of their own that are killed, or whose disk becomes full."""
    work, fault = (TRAIN if part == "train" else EVALUATE), (fill_disk if part == "disk" else killing.kill)
    found = killing.campaign(work, root, wanted, fault)
    lost = len(found["failed"]) + sum(end != found["whole"] for end in found["digests"])
    return Counter(
        kills=found["kills"],
        halfway=found["inside"],
        runs=found["runs"],
        lost=lost,
        leftovers=len(found["leftovers"]),
    )


# Jobs of several processes ---------------------------------------------------------------------------------


def shared_work(run: Path) -> None:
    """What every process of a job runs: an evaluation of a few seconds."""
    ensemble, data = problem(400)
    evaluate(ensemble, ARC(steps=4), data, BALL, out=run, shard_size=4, tile=8, progress=False)


SHARED = Work(
    shared_work,
    lambda run: list(run.glob("*.parquet")),
    lambda run: len(list(run.glob("*.parquet"))) not in (0, 100),
)


class Job:
    """An evaluation by two processes per node, on one node or on two."""

    def __init__(self, run: Path, nodes: int, port: int) -> None:
        self.run, self.port = run, port
        self.agents = [self.start(node, nodes) for node in range(nodes)]

    def start(self, node: int, nodes: int) -> subprocess.Popen[bytes]:
        meeting = ["--standalone", "--max-restarts=3"]
        if nodes > 1:
            meeting = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}"]
            meeting += [f"--rdzv-id={self.run.name}", "--rdzv-conf=join_timeout=120", "--max-restarts=10"]
        command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", *meeting, "--nproc-per-node=2"]
        command += ["--local-addr=127.0.0.1", "--monitor-interval=0.1", str(Path(__file__)), "--job", str(self.run)]
        with self.run.with_suffix(f".{node}.log").open("ab") as log:
            told = subprocess_environment(LOGLEVEL="INFO")
            return subprocess.Popen(command, env=told, stdout=log, stderr=log, start_new_session=True)

    def ended(self) -> bool:
        """Whether all nodes are done. Of several, one that failed is started again, as a scheduler would."""
        if len(self.agents) > 1:
            for node, agent in enumerate(self.agents):
                if agent.poll():
                    self.agents[node] = self.start(node, len(self.agents))
        return all(agent.poll() is not None for agent in self.agents)

    def complete(self) -> bool:
        """Whether the result is written."""
        summary = self.run / "summary.json"
        return summary.exists() and json.loads(summary.read_bytes()).get("complete", True)

    def succeeded(self) -> bool:
        """Once it has ended. A node that was killed after the last record has nobody to meet again: that is no loss."""
        left = time.monotonic() + HUNG
        while time.monotonic() < left:
            if self.ended():
                return all(agent.returncode == 0 for agent in self.agents)
            if len(self.agents) > 1 and self.complete():
                left = min(left, time.monotonic() + 10)
            time.sleep(0.1)
        for pid in [pid for agent in self.agents for pid in children(agent.pid)]:
            os.kill(pid, signal.SIGUSR1)  # each rank writes to the log what it is doing
        time.sleep(1)
        self.end()
        return len(self.agents) > 1 and self.complete()

    def kill(self) -> None:
        agent = random.choice(self.agents)
        ranks = children(agent.pid)
        if len(self.agents) == 1:
            os.kill(random.choice(ranks), signal.SIGKILL) if ranks else None
            return
        end_all([agent.pid, *ranks])
        agent.wait()

    def end(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                end_all([agent.pid, *children(agent.pid)])
                agent.wait()


def children(parent: int) -> list[int]:
    return [pid for pid, its_parent in processes() if its_parent == parent]


def processes() -> Iterator[tuple[int, int]]:
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(file.parent.name), int(file.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # ended meanwhile
            continue


def end_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def jobs(nodes: int, root: Path, wanted: int, port: int) -> Counter[str]:
    """Kill a process or a node again and again until the job is done; then the next job."""
    found = Counter[str]()
    job = Job(root / "whole", nodes, port)
    if not job.succeeded():
        raise SystemExit(f"a job that was left alone failed: {(root / 'whole.0.log').read_text()[-2000:]}")
    whole = digest(SHARED, root / "whole")
    while found["kills"] < wanted:
        found["runs"] += 1
        run = root / f"run-{found['runs']}"
        job, kills = Job(run, nodes, port + found["runs"]), 0
        while kills < 3 and found["kills"] + kills < wanted and reached_a_moment(job):
            found["halfway"] += SHARED.halfway(run)
            job.kill()
            kills += 1
        found["kills"] += kills
        same = job.succeeded() and digest(SHARED, run) == whole
        if not same:
            found["lost"] += 1
            for node in range(nodes):
                print(f"node {node}:", (root / f"{run.name}.{node}.log").read_text()[-10_000:], file=sys.stderr)
        print(
            f"{nodes} node(s), {run.name}: {kills} kills, {'' if same else 'not '}healed", file=sys.stderr, flush=True
        )
        found["leftovers"] += sum(".part" in file.name for file in run.glob("*"))
    return found


def reached_a_moment(job: Job) -> bool:
    """Wait for some more shards or, one time in four, for some seconds, in which ranks start and meet."""
    until = time.monotonic() + (random.uniform(0, 4) if random.random() < 0.25 else 600)
    shards = len(SHARED.result(job.run)) + random.randrange(1, 40)
    while time.monotonic() < until and len(SHARED.result(job.run)) < shards and not job.ended():
        time.sleep(0.01)
    return not job.ended() and not job.complete()


# The campaign ----------------------------------------------------------------------------------------------


def one_slice(part: str, number: int, wanted: int) -> tuple[Counter[str], float]:
    random.seed(f"{part} {number}")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="recarc-chaos-") as folder:
        if part in ("ranks", "nodes"):
            nodes = 1 if part == "ranks" else 2
            found = jobs(nodes, Path(folder), wanted, PORT + 50 * number)
        else:
            found = alone(part, Path(folder), wanted)
    return found, time.monotonic() - start


def main() -> int:
    """A table: kills, those that fell halfway, runs, runs that did not end in the same bytes, leftovers, seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=100, help="of evaluate; of the others a part of it")
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"among {', '.join(PARTS)}")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    asked = parser.parse_args()
    print(f"{'':10}" + "".join(f"{head:>11}" for head in (*COUNTS, "s")) + "  same bytes", flush=True)
    totals = {part: Counter[str]() for part in asked.parts}
    with ProcessPoolExecutor(asked.jobs, multiprocessing.get_context("fork")) as pool:
        slices = []
        for part in asked.parts:
            wanted = round(asked.kills * PARTS[part])
            for number in range(-(-wanted // SLICE[part])):
                share = min(SLICE[part], wanted - number * SLICE[part])
                slices.append((part, pool.submit(one_slice, part, number, share)))
        for k, (part, done) in enumerate(slices):
            found, seconds = done.result()
            totals[part] += found + Counter(s=round(seconds))
            if k + 1 == len(slices) or slices[k + 1][0] != part:
                cells = "".join(f"{totals[part][c]:>11}" for c in (*COUNTS, "s"))
                print(f"{part:10}{cells}  {'no' if totals[part]['lost'] else 'yes'}", flush=True)
    return int(any(found["lost"] + found["leftovers"] for found in totals.values()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        faulthandler.register(signal.SIGUSR1)
        shared_work(Path(sys.argv[2]))
    else:
        sys.exit(main())
