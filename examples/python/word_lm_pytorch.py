"""A word language model with PyTorch alone, in the shape of PyTorch's own example: an LSTM whose state is carried on."""

import argparse
import math
import pathlib
import time

import torch
from torch import nn, optim


class WordModel(nn.Module):
    def __init__(self, words, size, layers, dropout):
        super().__init__()
        self.words = words
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(words, size)
        self.lstm = nn.LSTM(size, size, layers, dropout=dropout)
        self.decoder = nn.Linear(size, words)

    def forward(self, data, hidden):
        output, hidden = self.lstm(self.drop(self.encoder(data)), hidden)
        return self.decoder(self.drop(output)).view(-1, self.words), hidden

    def first_hidden(self, batch):
        shape = self.lstm.num_layers, batch, self.lstm.hidden_size
        return torch.zeros(shape), torch.zeros(shape)


def read_corpus(path, batch):
    words = pathlib.Path(path).read_text(encoding="utf-8").split()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    data = torch.tensor([numbers[word] for word in words])
    length = len(data) // batch
    return data[: length * batch].view(batch, length).t().contiguous(), len(numbers)


def batches(corpus, length):
    for start in range(0, len(corpus) - length, length):
        yield corpus[start : start + length], corpus[start + 1 : start + 1 + length].reshape(-1)


def make_loss(model, hidden):
    def loss(model, batch):
        nonlocal hidden
        output, hidden = model(batch[0], tuple(part.detach() for part in hidden))
        return nn.functional.cross_entropy(output, batch[1])

    return loss


def train(model, corpus, optimizer, loss_function, args):
    model.train()
    total = steps = 0
    for batch in batches(corpus, args.length):
        optimizer.zero_grad()
        loss = loss_function(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        total += loss.item()
        steps += 1
    return math.exp(total / steps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="a text file")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--length", type=int, default=16, help="words of a step")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", help="file for the weights")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    corpus, words = read_corpus(args.data, args.batch)
    model = WordModel(words, args.size, layers=2, dropout=0.2)
    optimizer = optim.SGD(model.parameters(), lr=5.0)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
    loss = make_loss(model, model.first_hidden(args.batch))
    for epoch in range(args.epochs):
        begin = time.perf_counter()
        perplexity = train(model, corpus, optimizer, loss, args)
        print(f"epoch {epoch}  perplexity {perplexity:.2f}  {time.perf_counter() - begin:.2f} s")
        scheduler.step()
    if args.save:
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
