"""Writes models exported by torch.export, their data, and what PyTorch's own loop makes of them.

    python make_exported_models.py FOLDER

For each NAME of MODELS in FOLDER/NAME:
    model.pt2    what torch.export.save writes of the model in training mode
    eval.pt2     the same in evaluation mode
    run.json     names of the inputs in forward's order, loss, optimizer, seed, the losses as hexadecimal floats
    data.pt      {"STEP.ITEM": tensor}, the batches, of two sizes
    weights.pt   {name: tensor}, parameters and buffers after the last step of AdamW
    output.pt    {"output": tensor}, what eval.pt2 with these weights gives for the first batch
Besides FOLDER/Pair.pt2 and the files of other classes made from it, FOLDER/decomposed.pt2, FOLDER/python_op.pt2 with an op that only Python has, and FOLDER/other_shape.pt2 with a bias
of one number.

Needs nothing but torch. One thread, since sums depend on how they are split.
"""

import json
import pathlib
import sys
import typing
import warnings
import zipfile

import torch
from torch import nn
from torch.export import Dim, export, load, save
from torch.nn import functional

STEPS, SEED, LEARNING_RATE = 12, 7, 1e-3
CLASSES = 5


class Convolutions(nn.Module):
    """Batch norms with their buffers, dropout, a buffer that the model itself updates."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.2)
        self.depthwise, self.head = nn.Conv2d(4, 4, 3, groups=4), nn.Linear(4 * 2 * 2, CLASSES)
        self.last = nn.BatchNorm2d(4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        if self.training:
            self.seen.add_(x.mean())
        x = self.last(self.depthwise(functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)))
        return self.head(self.drop(x).flatten(1))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.embed, self.place = nn.Linear(8, 16), nn.Parameter(torch.randn(8, 16) * 0.02)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.head(self.layers(self.embed(x.squeeze(1)) + self.place).mean(1))


class Branches(nn.Module):
    """A branch on values, regions without gradients and under autocast, sizes that are computed."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, CLASSES)
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("next", torch.zeros(8))

    def forward(self, x):
        x = x.mean((1, 2))
        with torch.no_grad():
            scale = x.abs().mean() * ((x.shape[0] & 3) + (x.shape[0] | 8))
            if self.training:
                self.mean.lerp_(x.mean(0), 0.1)
                torch.add(self.mean, 1, out=self.next)
        x = torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x).tanh(), (x / scale,))
        with torch.autocast("cpu", torch.bfloat16):
            y = self.a(x)
        return self.head(torch.cat([x, y.float()], 1).view(2 * x.shape[0], -1).view(x.shape[0], -1))


class Language(nn.Module):
    """Tied weights, a buffer that is not persistent, constants, nested inputs and results, the loss within."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(CLASSES, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("places", torch.randn(16, 8) * 0.1, persistent=False)
        self.scale = torch.linspace(0.5, 1.5, 8)

    def forward(self, batch, target):
        tokens = batch["tokens"]
        x = self.embed(tokens) * self.scale + self.places[: tokens.shape[1]] + torch.tensor([0.1, -0.1]).repeat(4)
        logits = self.head(self.norm(x) * batch["mask"][0].unsqueeze(-1))
        loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        return {"loss": loss, "logits": logits, "more": (x.mean(), [x.sum()])}


class Results(typing.NamedTuple):
    logits: torch.Tensor
    loss: torch.Tensor


torch.utils._pytree._register_namedtuple(Results, serialized_type_name="Results")


class Oddities(nn.Module):
    """In-place ops on a copy of a buffer, complex buffers, one of which the model updates, expanded ones, a frozen weight and a
    buffer over the memory of a trained one, a cast, a named tuple."""

    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.register_buffer("mask", torch.arange(8) % 2)
        self.register_buffer("ones", torch.ones(1, 8).expand(3, 8))
        self.register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)), persistent=False)
        self.register_buffer("turned", torch.ones(4, dtype=torch.complex64))
        self.frozen = nn.Parameter(self.a.weight.data, requires_grad=False)
        self.register_buffer("shared", self.a.weight.detach())

    def forward(self, x, target):
        weights = self.mask.float()
        weights.mul_(2).add_(1)
        x = x.mean((1, 2)) * weights
        x = self.a(x).float() + functional.linear(x, self.frozen + self.shared) + self.ones.sum(0)
        logits = self.head(torch.view_as_real(torch.view_as_complex(x.view(-1, 4, 2)) * self.turned.clone()).flatten(1))
        if self.training:
            self.turned.mul_(self.turns)
        return Results(logits, functional.cross_entropy(logits, target))


def images(size, generator):
    return {"x": torch.randn(size, 1, 8, 8, generator=generator), "target": torch.randint(CLASSES, (size,), generator=generator)}


def tokens(size, generator):
    ids = torch.randint(CLASSES, (size, 7), generator=generator)
    return {"tokens": ids[:, :-1].clone(), "mask": torch.ones(size, 6), "target": ids[:, 1:].clone()}


MODELS = {
    "convolutions": (Convolutions, images, "cross_entropy"),
    "encoder": (Encoder, images, "cross_entropy"),
    "branches": (Branches, images, "cross_entropy"),
    "language": (Language, tokens, "none"),
    "oddities": (Oddities, images, "none"),
}
BATCH = Dim("batch", min=3, max=64)


def arguments_of(batch, loss):
    if "tokens" in batch:
        return ({"tokens": batch["tokens"], "mask": [batch["mask"]]}, batch["target"])
    return (batch["x"], batch["target"]) if loss == "none" else (batch["x"],)


def shapes_of(batch, loss):
    of_batch = {0: BATCH}
    if "tokens" in batch:
        return ({"tokens": of_batch, "mask": [of_batch]}, of_batch)
    return (of_batch, of_batch) if loss == "none" else (of_batch,)


def loss_of(output, batch, loss):
    if loss == "none":
        return output["loss"] if isinstance(output, dict) else output.loss
    return functional.cross_entropy(output, batch["target"])


def write(folder, name):
    kind, make_batch, loss = MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = kind().train()
    generator = torch.Generator().manual_seed(1)
    batches = [make_batch(6 if step % 3 else 4, generator) for step in range(STEPS)]
    for mode in ("eval", "train"):
        program = export(model.train(mode == "train"), arguments_of(batches[0], loss), dynamic_shapes=shapes_of(batches[0], loss))
        save(program, folder / ("model.pt2" if mode == "train" else "eval.pt2"))
    torch.save({f"{step}.{key}": tensor for step, batch in enumerate(batches) for key, tensor in batch.items()}, folder / "data.pt")
    program = load(folder / "model.pt2")
    module = program.module()
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, fused=True)
    torch.manual_seed(SEED)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        value = loss_of(module(*arguments_of(batch, loss)), batch, loss)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    have = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])
    signature = program.graph_signature
    names = [*signature.inputs_to_parameters.values(), *signature.inputs_to_buffers.values()]
    weights = {key: have[key].detach().clone() for key in names}
    torch.save(weights, folder / "weights.pt")
    module = load(folder / "eval.pt2").module()  # the model itself would take a fused path of its own
    module.load_state_dict({key: tensor for key, tensor in weights.items() if key != "ones"}, strict=False)
    with torch.no_grad():
        output = module(*arguments_of(batches[0], loss))
    logits = output["logits"] if isinstance(output, dict) else torch.utils._pytree.tree_leaves(output)[0]
    torch.save({"output": logits}, folder / "output.pt")
    run = {"inputs": [key for key in batches[0] if key != "target"], "loss": loss, "seed": SEED, "lr": LEARNING_RATE,
           "steps": STEPS, "losses": [value.hex() for value in losses]}
    (folder / "run.json").write_text(json.dumps(run, indent=1) + "\n")


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)

    def forward(self, zed, alpha):
        zeds = self.first(zed)
        return {"logits": zeds - self.second(alpha), "zeds": zeds}


class Turned(Pair):
    def forward(self, alpha, zed):
        results = super().forward(zed, alpha)
        return {"zeds": results["zeds"], "logits": results["logits"]}


class Renamed(Pair):
    def forward(self, alpha, other):
        return super().forward(other, alpha)


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Pair()

    def forward(self, zed, alpha):
        return self.model(zed, alpha)


class More(Pair):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(CLASSES))

    def forward(self, zed, alpha):
        return {name: result * self.scale for name, result in super().forward(zed, alpha).items()}


class LossAlone(Pair):
    def forward(self, zed, target):
        return functional.cross_entropy(self.first(zed), target)


@torch.library.custom_op("duet_tests::python_op", mutates_args=())
def python_op(x: torch.Tensor) -> torch.Tensor:
    return x * 2


python_op.register_fake(lambda x: torch.empty_like(x))


class WithPythonOp(nn.Module):
    def forward(self, x):
        return python_op(x)


def save_with_other_shape(source, path):
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(path, "w") as changed:
        for name in whole.namelist():
            content = whole.read(name)
            if name.endswith("weights_config.json"):
                config = json.loads(content)
                config["config"]["conv.bias"]["tensor_meta"]["sizes"] = [{"as_int": 1}]
                content = json.dumps(config).encode()
            changed.writestr(name, content)


def main(folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        write(folder / name, name)
    save(export(Convolutions(), (torch.randn(4, 1, 8, 8),)).run_decompositions(), folder / "decomposed.pt2")
    save(export(WithPythonOp(), (torch.randn(4),)), folder / "python_op.pt2")
    for kind in (Pair, Turned, Renamed, Wrapped, More, LossAlone):
        second = torch.zeros(6, dtype=torch.long) if kind is LossAlone else torch.randn(6, 8)
        save(export(kind().train(kind in (Pair, LossAlone)), (torch.randn(6, 8), second)), folder / f"{kind.__name__}.pt2")
    save_with_other_shape(folder / "convolutions" / "model.pt2", folder / "other_shape.pt2")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
