"""Batches whose lengths vary: few lengths mean few captured steps."""

import random

import torch

from . import _duet


def pad_to(lengths, values, dim=1):
    """A function that pads a batch, a dict of tensors, to the smallest of `lengths` that holds it, for collate_fn:

        pad = duet.pad_to([32, 64, 128], {"input_ids": 0, "attention_mask": 0, "labels": -100})
        loader = DataLoader(data, batch_sampler=..., collate_fn=lambda rows: pad(collate(rows)))

    values: the value that each tensor is filled up with, along `dim`; tensors that it does not name stay as they are.
    Throws DataError for a batch that is longer than the largest length.
    """
    lengths = sorted(lengths)

    def pad(batch):
        longest = max(batch[name].shape[dim] for name in values)
        target = next((length for length in lengths if length >= longest), None)
        if target is None:
            raise _duet.DataError(
                f"[pad_to] a batch has length {longest}, expected at most {lengths[-1]}; cut it, or add a length"
            )
        padded = dict(batch)
        for name, value in values.items():
            tensor = batch[name]
            missing = list(tensor.shape)
            missing[dim] = target - tensor.shape[dim]
            padded[name] = torch.cat([tensor, tensor.new_full(missing, value)], dim)
        return padded

    return pad


class BucketSampler:
    """Batches of samples of like length, as a DataLoader's batch_sampler: less padding, and few lengths.

    lengths: of every sample, in the order of the dataset. Each epoch shuffles samples and batches by its own random
    numbers, made of `seed` and the epoch.
    """

    def __init__(self, lengths, batch_size, *, seed=0, shuffle=True, drop_last=False, window=50):
        self.lengths, self.batch_size = list(lengths), batch_size
        self.seed, self.shuffle, self.drop_last, self.window = seed, shuffle, drop_last, window
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        whole, rest = divmod(len(self.lengths), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self):
        numbers = random.Random(f"{self.seed} {self.epoch}")
        order = list(range(len(self.lengths)))
        if self.shuffle:
            numbers.shuffle(order)
        # Sorted within windows: alike, and yet other batches in each epoch.
        span = self.batch_size * self.window
        batches, rest = [], []
        for start in range(0, len(order), span):
            part = sorted(order[start : start + span], key=self.lengths.__getitem__)
            for first in range(0, len(part), self.batch_size):
                batch = part[first : first + self.batch_size]
                (batches if len(batch) == self.batch_size else rest).append(batch)
        if self.shuffle:
            numbers.shuffle(batches)
        yield from batches
        if not self.drop_last:
            yield from rest
