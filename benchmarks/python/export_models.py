#!/usr/bin/env python3
"""Exports the models of zoo.py and export_zoo.py with torch.export in training mode, and trains them in PyTorch.

usage: export_models.py FOLDER [--only TEXT] [--steps N]

For each NAME that exports, FOLDER/NAME gets what a trainer in C++ needs to be compared with PyTorch bit by bit:
    model.pt2    what torch.export.save writes
    run.json     names of the inputs in forward's order, loss, optimizer, seed, the losses as hexadecimal floats
    data.pt      {"STEP.ITEM": tensor}, the batches; their sizes vary where the batch dimension is dynamic
    weights.pt   {name in the graph's signature: tensor}, parameters and buffers after the last step
PyTorch's loop runs ep.module() of the loaded file on one thread, twice: both runs must have the same bits. With loss
"none" the model returns its loss, as its first output, and takes the target as its last input. Needs transformers,
torchvision, timm and diffusers for the models that are of these.
"""

import argparse
import dataclasses
import inspect
import json
import pathlib
import random
import re
import sys
import warnings

import numpy
import torch
from torch.utils._pytree import tree_leaves, tree_map

import export_zoo
import zoo

SIZES = (8, 8, 5, 8, 3)
LARGEST = 32  # batch; some models take another way from 64 on
SEED, LEARNING_RATE = 7, 1e-3
TOO_LARGE = {"VGG-11"}  # half a gigabyte of weights, and nothing that smaller ones lack
LOSSES = {"cross_entropy": torch.nn.functional.cross_entropy, "mse": torch.nn.functional.mse_loss}
REASONS = {  # a part of torch.export's error → what it means
    "data-dependent": "Python code or a shape depends on values of a tensor",
    "got FakeTensor": "a shape is made from values of a tensor",
    "Constraints violated": "the model fixes the batch size, or demands a multiple",
}


class WithLoss(torch.nn.Module):
    """A model whose loss is not one over [N, C]: it goes into the graph, so that it is PyTorch's own in every trainer."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input, target):
        return torch.nn.functional.cross_entropy(tree_leaves(self.model(input))[0], target)


@dataclasses.dataclass
class Example:
    """A model with the names of its inputs, its loss and what makes batches of any size."""

    model: torch.nn.Module
    names: list
    by_keyword: bool
    loss: str
    make_batch: object

    def inputs(self, batch):
        values = [batch[name] for name in self.names]
        return ((), dict(zip(self.names, values))) if self.by_keyword else (tuple(values), {})

    def loss_of(self, output, batch):
        output, target = tree_leaves(output)[0], batch.get("target")
        if self.loss == "none":
            return output
        if self.loss == "cross_entropy" and output.dim() == 3:  # [N, T, C]: language models
            output, target = output.flatten(0, 1), target.flatten()
        return LOSSES[self.loss](output, target)


def rows(make_batch, count, generator):
    """A batch of this many rows out of those that make_batch gives."""
    parts = [make_batch(generator)]
    have = len(tree_leaves(parts)[0])
    parts += [make_batch(generator) for _ in range(have, count, have)]
    return tree_map(lambda *tensors: torch.cat(tensors)[:count].clone(), *parts)


def example(name):
    """The model NAME in training mode, its entry of a zoo brought to one form."""
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)
    model, loss, make = {**zoo.MODELS, **export_zoo.MODELS}[name]()
    for part in model.modules():
        if hasattr(getattr(part, "config", None), "use_cache"):
            part.config.use_cache = False  # the cache of keys and values, an output of no use here
    probe = make(torch.Generator().manual_seed(1))
    if loss is zoo.of_output:  # keywords, of which the labels are one
        keywords = [key for key in probe if key != "labels"]
        return Example(model.train(), [*keywords, "labels"], True, "none", make)
    inputs, target = probe
    by_keyword = isinstance(inputs, dict)
    kind = loss if isinstance(loss, str) else "cross_entropy" if loss is zoo.cross_entropy else "mse"
    if loss is zoo.cross_entropy and target.dim() > 1:
        model, kind = WithLoss(model), "none"
    names = list(inputs) if by_keyword else list(inspect.signature(model.forward).parameters)[:1]

    def flat(generator):
        inputs, target = make(generator)
        return {**(inputs if by_keyword else {names[0]: inputs}), "target": target}

    if kind == "none":
        names.append("target")
    return Example(model.train(), names, by_keyword, kind, flat)


def export(example, batch):
    """The exported program, and why its batch dimension is not dynamic (or None)."""
    args, kwargs = example.inputs(batch)
    batch_size = torch.export.Dim("batch", min=2, max=LARGEST)
    shapes = {name: {0: batch_size} for name in example.names}
    try:
        return torch.export.export(example.model, args, kwargs, dynamic_shapes=shapes), None
    except Exception as error:  # noqa: BLE001  whatever it is, the static export tells whether it matters
        return torch.export.export(example.model, args, kwargs), reason(error)


def reason(error):
    text = str(error).strip() or type(error).__name__
    meaning = next((words + ": " for part, words in REASONS.items() if part in text), "")
    lines = [line.strip(" -") for line in text.splitlines()]
    places = [line for line in lines[1:] if line.startswith(("Not all values", "Caused by")) and "_export/" not in line]
    line = re.sub(r"[\w./-]*/", "", " ".join([lines[0][:160], *places[:1]]))  # no folders of this machine
    return meaning + re.sub(r"\s+|\|", " ", line)


def check_training_mode(program):
    """An op with a flag of training that is off would train as in evaluation."""
    nodes = [node for part in program.graph_module.modules() for node in getattr(part, "graph", torch.fx.Graph()).nodes]
    for node in nodes:
        names = [argument.name for argument in getattr(getattr(node.target, "_schema", None), "arguments", ())]
        given = {**dict(zip(names, node.args)), **node.kwargs}
        for flag in ("train", "training", "use_input_stats"):
            if given.get(flag) is False:
                raise RuntimeError(f"{node.target} has {flag}=False in a model in training mode")


def train(path, example, batches):
    """PyTorch's loop over the program in the file: its losses, parameters and buffers."""
    program = torch.export.load(path)
    module = program.module(check_guards=False)  # those that 2.15 writes for FNet name a variable that is not there
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    torch.manual_seed(SEED)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        args, kwargs = example.inputs(batch)
        loss = example.loss_of(module(*args, **kwargs), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    signature = program.graph_signature
    have = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])
    names = [*signature.inputs_to_parameters.values(), *signature.inputs_to_buffers.values()]
    return losses, {name: have[name].detach().clone() for name in names}


def write(folder, name, steps):
    """Writes the model's folder; its line of the table."""
    made = example(name)
    generator = torch.Generator().manual_seed(1)
    program, why_static = export(made, rows(made.make_batch, SIZES[0], generator))
    check_training_mode(program)
    sizes = [SIZES[0] if why_static else SIZES[step % len(SIZES)] for step in range(steps)]
    batches = [rows(made.make_batch, size, generator) for size in sizes]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").unlink(missing_ok=True)  # the last to be written: whoever finds one finds the rest
    torch.export.save(program, folder / "model.pt2")
    called = {key: "target" if key == "labels" else key for key in batches[0]}
    torch.save({f"{i}.{called[k]}": t for i, batch in enumerate(batches) for k, t in batch.items()}, folder / "data.pt")
    losses, weights = train(folder / "model.pt2", made, batches)
    again, weights_again = train(folder / "model.pt2", made, batches)
    if losses != again or not all(torch.equal(weights[key], weights_again[key]) for key in weights):
        raise RuntimeError("two runs of PyTorch's loop differ (or have NaN)")
    torch.save(weights, folder / "weights.pt")
    run = {
        "name": name, "torch": torch.__version__, "steps": steps, "inputs": [called[key] for key in made.names],
        "loss": made.loss, "seed": SEED, "lr": LEARNING_RATE, "optimizer": "AdamW", "dynamic": not why_static,
        "losses": [loss.hex() for loss in losses],
    }
    (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n")
    count = sum(parameter.numel() for parameter in made.model.parameters())
    batch = f"static ({why_static})" if why_static else "dynamic"
    return f"| {name} | {count} | {len(program.graph.nodes)} | {batch} | {losses[0]:.4f} to {losses[-1]:.4f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", default="", help="models whose name holds this")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = [name for name in {**zoo.MODELS, **export_zoo.MODELS} if arguments.only.lower() in name.lower()]
    names = [name for name in names if name not in TOO_LARGE]
    done = 0
    print("| model | parameters | nodes | batch | loss |\n|---|--:|--:|---|---|")
    for name in names:
        try:
            line = write(arguments.folder / re.sub(r"\W+", "_", name).strip("_"), name, arguments.steps)
            done += 1
        except Exception as error:  # noqa: BLE001  a model that does not export is a line of the table
            line = f"| {name} | | | | not exported: {reason(error)} |"
        print(line, flush=True)
    print(f"\n{done} of {len(names)} exported, PyTorch {torch.__version__}")
    sys.exit(not done)


if __name__ == "__main__":
    main()
