"""A small config and its data, which many scripts train on."""

import gzip
import random

from file_bytes import idx

BASE = """\
model:
  type: SmallCnn
  channels: [4]
  dropout: 0.1
data:
  train:
    type: FashionMnist
    images: data/images
    labels: data/labels
    batch_size: 16
  val: {type: FashionMnist, images: data/images, labels: data/labels.gz, batch_size: 32}
trainer:
  max_steps: 4
optim_wrapper:
  optimizer:
    type: AdamW
    lr: 1.0e-3
    betas: [0.9, 0.95]
  clip_grad: {max_norm: 1.0}
param_scheduler:
  - {type: Linear, end: 2}
default_hooks: {checkpoint: {interval: 2}}
evaluator: [{type: Accuracy}]
"""


def random_table():
    """A CSV file of 100 rows."""
    numbers = random.Random(1)
    rows = (",".join(f"{numbers.gauss(0, 1):.4f}" for _ in range(4)) for _ in range(100))
    return "a,b,c,y\n" + "\n".join(rows) + "\n"


def write_data(folder):
    """64 pictures of noise of ten classes."""
    folder.mkdir()
    labels = idx([64], bytes(i % 10 for i in range(64)))
    (folder / "images").write_bytes(idx([64, 28, 28], random.Random(0).randbytes(64 * 28 * 28)))
    (folder / "labels").write_bytes(labels)
    (folder / "labels.gz").write_bytes(gzip.compress(labels))
