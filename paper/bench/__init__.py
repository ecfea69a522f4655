"""Benchmarks, as items: they only time; accuracies come from `evaluate`. docs/performance.md is written from them."""

from paper.bench import attacks, scaling, throughput, training

__all__ = ["attacks", "scaling", "throughput", "training"]
