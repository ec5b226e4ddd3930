"""Writes backbone.pt for 06_finetune: a small CNN without its head, trained on half of Fashion-MNIST's classes.

usage: export_backbone.py FILE.pt
"""

import gzip
import sys

import numpy
import torch
from torch import nn

ROOT = "/usr/share/datasets/fashion-mnist"  # Debian's dataset-fashion-mnist
CLASSES, SAMPLES, BATCH = 5, 12_000, 64  # clothes; shoes and bags are left for later


def read(name, header):
    with gzip.open(f"{ROOT}/train-{name}.gz") as file:
        return torch.from_numpy(numpy.frombuffer(file.read(), dtype=numpy.uint8, offset=header).copy())


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    labels = read("labels-idx1-ubyte", 8).long()
    images = read("images-idx3-ubyte", 16).view(-1, 1, 28, 28)
    chosen = (labels < CLASSES).nonzero().flatten()[:SAMPLES]
    backbone = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(),
    )  # fmt: skip
    model = nn.Sequential(backbone, nn.Linear(64, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for rows in chosen[torch.randperm(len(chosen))].split(BATCH):
        loss = nn.functional.cross_entropy(model((images[rows] / 255 - 0.286) / 0.353), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.jit.script(backbone).save(sys.argv[1])
    print(f"wrote {sys.argv[1]}; its last loss on classes 0 to {CLASSES - 1} was {loss.item():.3f}")


if __name__ == "__main__":
    main()
