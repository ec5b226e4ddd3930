"""Writes the groups in paramwise_golden.inc: the options that mmengine's and mmsegmentation's own constructors give every
parameter of the models there in each of the cases there.

    pip install mmengine && pip download --no-deps mmsegmentation==1.2.2 -d FOLDER
    python tests/optim/groups/make_paramwise_golden.py FOLDER/mmsegmentation-1.2.2-py3-none-any.whl

Each model is a tree of layers that the test builds again in C++: {"type", "args"} for one of torch.nn, else {"type",
"parameters", "children"}; "frozen": not trainable; "tied": the full name of the parameter that one is. Of mmsegmentation
only the file of the constructor is run, from the wheel, since the rest needs mmcv; mmcv's deformable convolutions are two
empty classes here, by which mmengine recognises them.
"""

import hashlib
import json
import logging
import pathlib
import sys
import types
import zipfile

import mmengine
import torch
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.optim.optimizer import default_constructor
from torch import nn

DECAY_FILE = "mmseg/engine/optimizers/layer_decay_optimizer_constructor.py"


class DeformConv2d(nn.Module):
    pass


class ModulatedDeformConv2d(nn.Module):
    pass


LAYERS = {
    "Conv1d": lambda a: nn.Conv1d(a[0], a[1], a[2], groups=a[3], bias=bool(a[4])),
    "Conv2d": lambda a: nn.Conv2d(a[0], a[1], a[2], groups=a[3], bias=bool(a[4])),
    "ConvTranspose2d": lambda a: nn.ConvTranspose2d(a[0], a[1], a[2], groups=a[3], bias=bool(a[4])),
    "Linear": lambda a: nn.Linear(a[0], a[1], bias=bool(a[2])),
    "Embedding": lambda a: nn.Embedding(*a),
    "LSTM": lambda a: nn.LSTM(*a),
    "LayerNorm": lambda a: nn.LayerNorm(a[0]),
    "GroupNorm": lambda a: nn.GroupNorm(*a),
    "BatchNorm1d": lambda a: nn.BatchNorm1d(*a),
    "BatchNorm2d": lambda a: nn.BatchNorm2d(*a),
    "InstanceNorm2d": lambda a: nn.InstanceNorm2d(a[0], affine=True),
}


def build(node):
    if node["type"] in LAYERS:
        built = LAYERS[node["type"]](node["args"])
    else:
        base = {"DeformConv2d": DeformConv2d, "ModulatedDeformConv2d": ModulatedDeformConv2d}.get(node["type"], nn.Module)
        built = type(node["type"], (base,), {})()
        for text in node["parameters"]:
            name, shape = text.split(":")
            built.register_parameter(name, nn.Parameter(torch.zeros([int(n) for n in shape.split(",")])))
        for name, child in node["children"]:
            built.add_module(name, build(child))
    if node.get("frozen"):
        built.requires_grad_(False)
    return built


def tie(model, node, path=""):
    for name, target in node.get("tied", {}).items():
        owner = model.get_submodule(path)
        owner.register_parameter(name, model.get_parameter(target))
    for name, child in node.get("children", []):
        tie(model, child, f"{path}.{name}".lstrip("."))


def groups_of(constructor, node, optimizer, config):
    model = build(node)
    tie(model, node)
    names = {id(p): n for n, p in model.named_parameters()}
    wrapper = constructor({"optimizer": dict(optimizer)}, dict(config))(model)
    groups = []
    for group in wrapper.optimizer.param_groups:
        numbers = {"lr": group["lr"], "weight_decay": group["weight_decay"]}
        if optimizer["type"] == "SGD":
            numbers["momentum"] = group["momentum"]
        else:
            numbers["beta1"], numbers["beta2"] = group["betas"]
        # Without a paramwise_cfg the constructor hands over the frozen ones too.
        parameters = [names[id(p)] for p in group["params"] if p.requires_grad]
        groups.append({"name": group.get("group_name", ""), "numbers": numbers, "parameters": parameters})
    return merged(groups)


def merged(groups):
    """mmengine makes one group per parameter; those with equal options are written as one."""
    result = []
    for group in groups:
        same = [g for g in result if (g["name"], g["numbers"]) == (group["name"], group["numbers"])]
        if same:
            same[0]["parameters"] += group["parameters"]
        else:
            result.append(group)
    return result


def stub_mmcv():
    ops = types.ModuleType("mmcv.ops")
    ops.DeformConv2d, ops.ModulatedDeformConv2d = DeformConv2d, ModulatedDeformConv2d
    sys.modules["mmcv"] = types.ModuleType("mmcv")
    sys.modules["mmcv.ops"] = ops
    default_constructor.mmcv_full_available = lambda: True


def decay_constructor(wheel):
    source = zipfile.ZipFile(wheel).read(DECAY_FILE)
    registry = types.ModuleType("mmseg.registry")
    registry.OPTIM_WRAPPER_CONSTRUCTORS = types.SimpleNamespace(register_module=lambda: lambda c: c)
    sys.modules["mmseg"], sys.modules["mmseg.registry"] = types.ModuleType("mmseg"), registry
    scope = {"__name__": "layer_decay"}
    exec(compile(source, DECAY_FILE, "exec"), scope)
    return scope["LearningRateDecayOptimizerConstructor"], hashlib.sha256(source).hexdigest()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    logging.disable(logging.CRITICAL)
    mmengine.MMLogger.get_instance("golden", log_level="CRITICAL")
    stub_mmcv()
    decay, sha256 = decay_constructor(sys.argv[1])
    constructors = {made.__name__: made for made in (DefaultOptimWrapperConstructor, decay)}
    target = pathlib.Path(__file__).with_name("paramwise_golden.inc")
    golden = json.loads("".join(line[4:-3] for line in target.read_text().splitlines() if line.startswith('R"j(')))
    models = golden["models"]
    for case in golden["cases"]:
        constructor = constructors[case["constructor"]]
        case["groups"] = groups_of(constructor, models[case["model"]], case["optimizer"], case["config"])

    def compact(value):
        return json.dumps(value, separators=(",", ":"))

    # One literal per line: compilers limit the length of one.
    text = '{"models": {\n' + ",\n".join(f"{compact(name)}: {compact(node)}" for name, node in models.items())
    text += '},\n"cases": [\n' + ",\n".join(map(compact, golden["cases"])) + "]}"
    head = [f"// Written by make_paramwise_golden.py with mmengine {mmengine.__version__}, torch {torch.__version__} and",
            f"// {DECAY_FILE}", f"// of mmsegmentation 1.2.2 (sha256 {sha256})."]
    target.write_text("\n".join(head + [f'R"j({line})j"' for line in text.split("\n")]) + "\n")


if __name__ == "__main__":
    main()
