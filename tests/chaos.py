"""kill -9 at random moments, then a rerun: `make chaos KILLS=100` prints how often, and what was lost."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "evaluation"), str(HERE / "training")]

from killing import EVALUATE, Work, campaign  # noqa: E402
from small_training import small  # noqa: E402

from recarc.training.checkpoint import STATE  # noqa: E402


def learn(out: Path) -> None:
    small("bat", out=out, epochs=1.5, arch_options={"width": 4, "batch_norm": True}, checkpoint_minutes=0.0)


TRAIN = Work(
    learn,
    lambda out: list(out.glob("*.safetensors")),
    lambda out: (out.with_name(out.name + ".part") / STATE).exists(),
)


def main(kills: int) -> int:
    """A table: kills, those that fell halfway, runs, runs that did not end in the same bytes, leftovers, seconds."""
    heads = ("kills", "halfway", "runs", "lost", "leftovers", "s")
    print(f"{'':10}" + "".join(f"{head:>11}" for head in heads), flush=True)
    bad = 0
    for name, work, wanted in (("evaluate", EVALUATE, kills), ("train", TRAIN, kills // 2)):
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = campaign(work, Path(folder), wanted)
        lost = len(found["failed"]) or sum(end != found["whole"] for end in found["digests"])
        counts = (found["kills"], found["inside"], found["runs"], lost, len(found["leftovers"]))
        print(f"{name:10}" + "".join(f"{n:>11}" for n in (*counts, round(time.monotonic() - start))), flush=True)
        bad += lost + len(found["leftovers"])
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
