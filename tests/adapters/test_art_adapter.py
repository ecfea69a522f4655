"""Against the real Adversarial Robustness Toolbox: its classifiers in, our attacks with `generate`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import ALPHA, BALL, HINT, OURS, Scaled, models, name_of, problem
from torch import nn

from recarc import ARC, Attack, InputError, RandomizedEnsemble

pytest.importorskip("art", reason=f"adversarial-robustness-toolbox is {HINT}")
ra = pytest.importorskip("recarc.adapters.art")


def classifier(model: nn.Module, **knobs: object) -> object:
    from art.estimators.classification import PyTorchClassifier

    options = {"clip_values": (0, 1), "device_type": "cpu", **knobs}
    return PyTorchClassifier(model, nn.CrossEntropyLoss(), input_shape=(2, 4, 4), nb_classes=5, **options)


@pytest.mark.parametrize("ours", OURS, ids=name_of)
def test_generate_in_numpy(ours: Attack) -> None:
    from art.attacks import EvasionAttack

    ensemble, x, y = problem()
    attack = ra.wrap(ours, [classifier(m) for m in models()], ALPHA, eps=0.1, batch_size=len(x))
    assert isinstance(attack, EvasionAttack) and repr(attack).startswith(name_of(ours))
    found = attack.generate(x.numpy(), y.numpy())
    assert isinstance(found, np.ndarray) and found.dtype == np.float32
    assert np.array_equal(found, ours(ensemble, x, y, BALL).numpy())
    one_hot = np.eye(5, dtype=np.float32)[y.numpy()]
    assert np.array_equal(attack.generate(x=x.numpy(), y=one_hot), found)
    assert attack.expected_accuracy(found, one_hot).mean() < attack.expected_accuracy(x.numpy(), y.numpy()).mean()


def test_without_labels_it_attacks_the_predictions() -> None:
    ensemble, x, _ = problem()
    attack = ra.wrap(ARC(steps=3), ensemble, eps=0.1)
    predictions = ensemble.expected_logits(x).argmax(1)
    assert np.array_equal(attack.generate(x.numpy()), attack.generate(x.numpy(), predictions.numpy()))


def test_clip_values_and_preprocessing() -> None:
    ensemble, x, y = problem()
    in_bytes = [classifier(Scaled(m, 0.2, 0.5), clip_values=(0, 255), preprocessing=(51.0, 127.5)) for m in models()]
    found = ra.wrap(ARC(steps=5), in_bytes, ALPHA, eps=25.5).generate(255 * x.numpy(), y.numpy())
    assert np.abs(found - 255 * x.numpy()).max() <= 25.5 + 1e-3
    expected = ensemble.expected_accuracy(ARC(steps=5)(ensemble, x, y, BALL), y).mean()
    assert abs(float(ensemble.expected_accuracy(torch.from_numpy(found) / 255, y).mean() - expected)) < 0.1

    member = ra.member(in_bytes[0])
    assert torch.allclose(member(x), ensemble.members[0](x), atol=1e-4)
    assert np.allclose(member(x).detach().numpy(), in_bytes[0].predict(255 * x.numpy()), atol=1e-4)
    RandomizedEnsemble([member, models()[1]])


def test_what_art_users_get_wrong() -> None:
    from art.defences.preprocessor import FeatureSqueezing

    ensemble, x, y = problem()
    with pytest.raises(InputError, match="no clip_values"):
        ra.member(classifier(models()[0], clip_values=None))
    with pytest.raises(InputError, match="defence FeatureSqueezing"):
        ra.member(classifier(models()[0], preprocessing_defences=FeatureSqueezing(clip_values=(0, 1))))
    with pytest.raises(InputError, match="channels last"):
        ra.member(classifier(models()[0], channels_first=False))
    with pytest.raises(InputError, match="not an ART PyTorchClassifier"):
        ra.member(models()[0])
    with pytest.raises(InputError, match="different clip_values"):
        ra.wrap(ARC(), [classifier(models()[0]), classifier(models()[1], clip_values=(-1, 1))])
    with pytest.raises(InputError, match="wrap all of them or none"):
        ra.wrap(ARC(), [classifier(models()[0]), models()[1]])
    with pytest.raises(InputError, match="labels are str"):
        ra.wrap(ARC(), ensemble).generate(x.numpy(), np.array(["cat"] * len(x)))
    with pytest.raises(InputError, match="not one-hot"):
        ra.wrap(ARC(), ensemble).generate(x.numpy(), np.full((len(x), 5), 0.2))
    with pytest.raises(InputError, match="does not take"):
        ra.wrap(ARC(), ensemble).generate(x.numpy(), y.numpy(), mask=None)
    with pytest.raises(InputError, match="eps is -1"):
        ra.wrap(ARC(), ensemble, eps=-1)
