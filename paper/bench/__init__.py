"""Benchmarks, as items: they only time; accuracies come from `evaluate`. docs/performance.md is written from them."""
