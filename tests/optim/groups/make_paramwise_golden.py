"""Writes paramwise_golden.inc: the options that mmengine's and mmsegmentation's own constructors give every parameter.

    .venv-peers/bin/pip download --no-deps mmsegmentation==1.2.2 -d FOLDER
    .venv-peers/bin/python tests/optim/groups/make_paramwise_golden.py FOLDER/mmsegmentation-1.2.2-py3-none-any.whl

Each model is a tree of layers that the test builds again in C++. Of mmsegmentation only the file of the constructor is
run, from the wheel, since the rest needs mmcv; mmcv's deformable convolutions are two empty classes here, by which
mmengine recognises them.
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


# A node: {"type", "args"} for a layer of torch.nn, else {"type", "parameters", "children"}; "frozen": not trainable.
def layer(type_, *args):
    return {"type": type_, "args": [int(a) for a in args]}


def module(type_="Module", parameters=(), tied=None, **children):
    node = {"type": type_, "parameters": list(parameters), "children": [[k.lstrip("_"), v] for k, v in children.items()]}
    if tied:
        node["tied"] = tied  # name of its parameter: full name of the parameter that it is
    return node


def sequence(*nodes):
    return module("Sequential", **{f"_{i}": node for i, node in enumerate(nodes)})


def frozen(node):
    return {**node, "frozen": True}


def convs():
    return module(
        stem=layer("Conv2d", 1, 4, 3, 1, 1), norm=layer("BatchNorm2d", 4), depthwise=layer("Conv2d", 4, 4, 3, 4, 1),
        expand=layer("Conv2d", 4, 8, 1, 2, 0), group=layer("GroupNorm", 2, 8), row=layer("Conv1d", 8, 8, 3, 8, 1),
        up=layer("ConvTranspose2d", 8, 8, 2, 8, 1), instance=layer("InstanceNorm2d", 8), fixed=frozen(layer("Linear", 8, 8, 1)),
        head=layer("Linear", 8, 3, 1))


def residual():
    def block(width):
        return module("Bottleneck", conv1=layer("Conv2d", width, width, 1, 1, 0), bn1=layer("BatchNorm2d", width),
                      conv2=layer("Conv2d", width, width, 3, width, 0), bn2=layer("BatchNorm2d", width),
                      downsample=sequence(layer("Conv2d", width, width, 1, 1, 1), layer("BatchNorm2d", width)))

    backbone = module("ResNet", conv1=layer("Conv2d", 3, 4, 7, 1, 0), bn1=layer("BatchNorm2d", 4),
                      layer1=sequence(block(4), block(4)), layer2=sequence(block(4)))
    return module("Segmentor", backbone=backbone, neck=sequence(layer("Linear", 4, 4, 1), layer("LayerNorm", 4)),
                  decode_head=module("Head", conv_seg=layer("Conv2d", 4, 5, 1, 1, 1), bn=layer("BatchNorm2d", 4)))


def vit(kind, depth=3, at_root=False):
    def block():
        return module("Block", ["gamma_1:4", "gamma_2:4"], ln1=layer("LayerNorm", 4),
                      attn=module("Attention", ["relative_position_bias_table:9,2"], qkv=layer("Linear", 4, 12, 0),
                                  proj=layer("Linear", 4, 4, 1)),
                      ln2=layer("LayerNorm", 4), ffn=sequence(layer("Linear", 4, 8, 1), layer("Linear", 8, 4, 1)))

    body = {"patch_embed": module("PatchEmbed", projection=layer("Conv2d", 3, 4, 2, 1, 1)),
            "layers": sequence(*[block() for _ in range(depth)]), "norm": layer("LayerNorm", 4)}
    tokens = ["cls_token:1,1,4", "pos_embed:1,5,4"] + (["mask_token:1,1,4"] if kind != "MAE" else [])
    if at_root:
        return module(kind, tokens, **body)
    head = module("UPerHead", ["cls_token:1,1,4"], conv_seg=layer("Conv2d", 4, 3, 1, 1, 1), norm=layer("BatchNorm2d", 4))
    return module("EncoderDecoder", backbone=module(kind, tokens, **body), decode_head=head)


def convnext(depths):
    def block():
        return module("ConvNeXtBlock", ["gamma:4"], depthwise_conv=layer("Conv2d", 4, 4, 7, 4, 1),
                      norm=layer("LayerNorm", 4), pointwise_conv1=layer("Linear", 4, 8, 1),
                      pointwise_conv2=layer("Linear", 8, 4, 1))

    down = [sequence(layer("Conv2d", 3, 4, 4, 1, 1), layer("LayerNorm", 4))]
    down += [sequence(layer("LayerNorm", 4), layer("Conv2d", 4, 4, 2, 1, 1)) for _ in range(3)]
    backbone = module("ConvNeXt", downsample_layers=sequence(*down),
                      stages=sequence(*[sequence(*[block() for _ in range(n)]) for n in depths]), norm3=layer("LayerNorm", 4))
    return module("EncoderDecoder", backbone=backbone, decode_head=module("Head", conv=layer("Conv2d", 4, 3, 1, 1, 1)),
                  auxiliary_head=module("Head", conv=layer("Conv2d", 4, 3, 1, 1, 1)))


def tied():
    return module("Gpt", ["scale:1", "bias:4"], tokens=layer("Embedding", 7, 4), positions=layer("Embedding", 6, 4),
                  norm=layer("LayerNorm", 4), mixer=layer("LSTM", 4, 4), batch=layer("BatchNorm1d", 4),
                  head=module("Head", ["bias:7"], tied={"weight": "tokens.weight"}))


def deformable():
    def dcn(kind):
        return module(kind, ["weight:4,4,3,3", "bias:4"], conv_offset=layer("Conv2d", 4, 18, 3, 1, 1),
                      norm=layer("BatchNorm2d", 4))

    return module(conv_offset=layer("Conv2d", 3, 4, 3, 1, 1), first=dcn("DeformConv2d"), second=dcn("ModulatedDeformConv2d"),
                  other=module(conv_offset=layer("Conv2d", 4, 4, 1, 1, 1)), head=layer("Linear", 4, 2, 1))


MODELS = {
    "convs": convs(), "residual": residual(), "beit": vit("BEiT"), "mae": vit("MAE", 2), "vit_root": vit("VisionTransformer", 2, True),
    "convnext": convnext([3, 3, 9, 3]), "convnext_deep": convnext([2, 2, 27, 2]), "tied": tied(), "deformable": deformable(),
}

SGD = {"type": "SGD", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0005}
ADAMW = {"type": "AdamW", "lr": 6e-5, "betas": [0.9, 0.999], "weight_decay": 0.01}
RULES = {"norm_decay_mult": 0.0, "bias_lr_mult": 2.0, "bias_decay_mult": 0.5, "dwconv_decay_mult": 0.1, "flat_decay_mult": 0.25}
NO_DECAY = {"decay_mult": 0.0}
SWIN = {"absolute_pos_embed": NO_DECAY, "relative_position_bias_table": NO_DECAY, "norm": NO_DECAY}

# model, optimizer, paramwise_cfg
DEFAULT_CASES = [
    *[(name, SGD, RULES) for name in ("convs", "residual", "beit", "convnext", "deformable")],
    *[("convs", SGD, {key: RULES[key]}) for key in RULES],
    ("convs", ADAMW, {"flat_decay_mult": 0.0, "dwconv_decay_mult": 0.3}),
    ("residual", SGD, {"norm_decay_mult": 0.0}),
    ("residual", ADAMW, {"custom_keys": {"backbone": {"lr_mult": 0.1, "decay_mult": 0.9}}, "norm_decay_mult": 0.0, "bias_lr_mult": 2.0}),
    ("residual", ADAMW, {"custom_keys": {"backbone": {"lr_mult": 0.1}, "backbone.layer1": {"lr_mult": 0.3},
                                         "layer1.0.bn1": {"decay_mult": 0.0}, "backbone.layer2": {"lr_mult": 0.5}}}),
    # Equally long keys that fit the same parameter: the first in the alphabet.
    ("residual", SGD, {"custom_keys": {"conv1": {"lr_mult": 3.0}, "layer": {"lr_mult": 5.0}, "block": {"lr_mult": 7.0}}}),
    ("residual", SGD, {"custom_keys": {"bn": {"decay_mult": 0.0, "momentum": 0.5}, "decode_head": {"lr": 0.3, "lr_mult": 9.0},
                                       "neck": {"weight_decay": 0.125, "decay_mult": 0.0}}}),
    ("residual", ADAMW, {"custom_keys": {"decode_head": {"betas": [0.8, 0.95], "lr_mult": 10.0}}}),
    ("beit", ADAMW, {"custom_keys": {"pos_embed": NO_DECAY, "cls_token": NO_DECAY, "norm": NO_DECAY}}),
    ("beit", ADAMW, {"custom_keys": SWIN, "bias_decay_mult": 0.0}),
    ("mae", ADAMW, {"custom_keys": {"backbone": {"lr_mult": 0.0}, "head": {"lr_mult": 10.0}}}),
    ("vit_root", ADAMW, {"custom_keys": {".cls_token": NO_DECAY, "layers.1": {"lr_mult": 0.7}}, "flat_decay_mult": 0.0}),
    ("tied", SGD, {**RULES, "bypass_duplicate": True}),
    ("tied", ADAMW, {"custom_keys": {"head": {"lr_mult": 5.0}, ".bias": {"decay_mult": 0.0}}, "bypass_duplicate": True}),
    ("deformable", SGD, {"dcn_offset_lr_mult": 0.1}),
    ("deformable", SGD, {**RULES, "dcn_offset_lr_mult": 0.1, "custom_keys": {"second.norm": {"lr_mult": 0.0}}}),
    ("convnext", ADAMW, {}),
]

# model, optimizer, paramwise_cfg
DECAY_CASES = [
    ("convnext", ADAMW, {"decay_rate": 0.9, "decay_type": "stage_wise", "num_layers": 6}),
    ("convnext", ADAMW, {"decay_rate": 0.9, "decay_type": "stage_wise", "num_layers": 12}),
    ("convnext", ADAMW, {"decay_rate": 0.8, "decay_type": "layer_wise", "num_layers": 6}),
    ("convnext_deep", ADAMW, {"decay_rate": 0.7, "decay_type": "layer_wise", "num_layers": 12}),
    ("beit", ADAMW, {"decay_rate": 0.9, "decay_type": "layer_wise", "num_layers": 3}),
    ("beit", SGD, {"decay_rate": 0.65, "num_layers": 12}),
    ("mae", ADAMW, {"decay_rate": 0.75, "decay_type": "layer_wise", "num_layers": 2}),
]


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


def groups_of(constructor, model_name, optimizer, config):
    model = build(MODELS[model_name])
    tie(model, MODELS[model_name])
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
    lines = []
    for constructor, cases in ((DefaultOptimWrapperConstructor, DEFAULT_CASES), (decay, DECAY_CASES)):
        for model, optimizer, config in cases:
            case = {"constructor": constructor.__name__, "model": model, "optimizer": optimizer, "config": config,
                    "groups": groups_of(constructor, model, optimizer, config)}
            lines.append(json.dumps(case, separators=(",", ":")))
    models = ",\n".join(f"{json.dumps(name)}: {json.dumps(node, separators=(',', ':'))}" for name, node in MODELS.items())
    target = pathlib.Path(__file__).with_name("paramwise_golden.inc")
    # One literal per line: compilers limit the length of one.
    text = '{"models": {\n' + models + '},\n"cases": [\n' + ",\n".join(lines) + "]}"
    head = [f"// Written by make_paramwise_golden.py with mmengine {mmengine.__version__}, torch {torch.__version__} and",
            f"// {DECAY_FILE}", f"// of mmsegmentation 1.2.2 (sha256 {sha256})."]
    target.write_text("\n".join(head + [f'R"j({line})j"' for line in text.split("\n")]) + "\n")
    print(target, len(lines), "cases,", target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
