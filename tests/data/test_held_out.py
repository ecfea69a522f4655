"""Which training images alpha may be chosen on."""

from __future__ import annotations

import numpy as np
import pytest

from recarc.data import load
from recarc.data.held_out import held_out, held_out_rows

TRAIN = load("digits", "train")
MADE_BY = {"fingerprint": TRAIN.fingerprint, "validation_images": 100, "seed": 3}


def test_what_the_training_held_out() -> None:
    found = held_out(TRAIN, MADE_BY)
    assert found.known and found.words == "training images that training held out"
    assert found.images.fingerprint == TRAIN.subset(held_out_rows(len(TRAIN), 100, 3)).fingerprint
    assert len(found.images) == 100 and found.images.split == "train"


@pytest.mark.parametrize(
    "made_by",
    [{}, {"import": "dverge"}, {**MADE_BY, "validation_images": 0}, {**MADE_BY, "fingerprint": "other images"}],
)
def test_without_a_record_all_training_images_and_a_warning(made_by: dict[str, object]) -> None:
    found = held_out(TRAIN, made_by)
    assert not found.known and found.images is TRAIN and "may have been trained on" in found.words


def test_members_that_a_training_started_from_count_too() -> None:
    """Only images that neither training saw; of an older record it is said that nothing is known."""
    started = {**MADE_BY, "start": ["hash"], "start_split": [{**MADE_BY, "seed": 4}]}
    common = np.intersect1d(held_out_rows(len(TRAIN), 100, 3), held_out_rows(len(TRAIN), 100, 4))
    assert 0 < len(common) < 100 and len(held_out(TRAIN, started).images) == len(common)
    same = held_out(TRAIN, {**started, "start_split": [MADE_BY]})
    assert len(same.images) == 100 and same.words.endswith("held out")
    unknown = held_out(TRAIN, {**started, "start_split": [{"fingerprint": None, "validation_images": None}]})
    assert not unknown.known
    older = held_out(TRAIN, {**MADE_BY, "start": ["hash"]})
    assert older.known and "started from nothing is recorded" in older.words
    never = [{**MADE_BY, "validation_images": 1, "seed": seed} for seed in range(3)]
    assert not held_out(TRAIN, {**MADE_BY, "start_split": never}).known
