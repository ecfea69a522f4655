"""A randomized ensemble of pretrained ImageNet models: EfficientNet-lite 0, 1 and 2 from the package index.

    python examples/imagenet_efficientnet_lite.py imagenet-sample.parquet --limit 100        (recarc[efficientnet])

The file is Parquet with the columns `image` (bytes of 224 x 224 JPEG files) and `label` (0..999 in synset order), as
the Hub has them. The models are not adversarially trained: a very small eps is enough.
"""

from __future__ import annotations

import argparse
import io

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor

from recarc import ARC, AdaptivePGD, Ball, RandomizedEnsemble, evaluate
from recarc.adapters.members import efficientnet_lite


def read(path: str, limit: int) -> tuple[Tensor, Tensor]:
    rows = pq.read_table(path).slice(0, limit).to_pylist()
    images = [np.array(Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")) for row in rows]
    x = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
    return x, torch.tensor([row["label"] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--eps", type=float, default=0.5 / 255)
    arguments = parser.parse_args()
    data = read(arguments.file, arguments.limit)
    ensemble = RandomizedEnsemble([efficientnet_lite(size) for size in arguments.sizes])
    ball = Ball("linf", arguments.eps)
    # planes: of the 999 other classes ARC considers the four nearest, as the paper does for ImageNet.
    for attack in (AdaptivePGD(steps=arguments.steps), ARC(steps=arguments.steps, planes=4)):
        result = evaluate(ensemble, attack, data, ball, tile=min(16, arguments.limit))
        members = ", ".join(f"{a:.1%}" for a in result.member_clean)
        print(f"{type(attack).__name__:<12}{ball}: {result.clean_accuracy:.1%} clean (members {members})")
        print(f"{'':<12}{result.robust_accuracy:.1%} under attack")


if __name__ == "__main__":
    main()
