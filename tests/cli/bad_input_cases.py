"""The tables and files of bad_input.py."""

import gzip
import json
import random
import struct

CONFIG, DATA, CHECKPOINT, DIVERGED = 2, 3, 4, 5  # exit codes

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

# An override of the config above, the exit code, what the message must say.
OVERRIDES = [
    # Unknown keys, with the nearest known one
    ("traner.max_steps=3", CONFIG, r"command line: unknown key 'traner' in the config; .*did you mean 'trainer'"),
    ("trainer.max_step=3", CONFIG, r"unknown key 'max_step' in trainer; .*did you mean 'max_steps'"),
    ("model.drop=0.1", CONFIG, r"unknown key 'drop' in model; .*did you mean 'dropout'"),
    ("data.train.batchsize=3", CONFIG, r"unknown key 'batchsize' in data\.train; .*did you mean 'batch_size'"),
    ("data.tain.type=Text", CONFIG, r"unknown key 'tain' in data; .*did you mean 'train'"),
    ("optim_wrapper.optimizer.momentum=0.9", CONFIG, r"unknown key 'momentum' in optim_wrapper\.optimizer"),
    ("default_hooks.chekpoint=null", CONFIG, r"unknown key 'chekpoint' in default_hooks; .*did you mean 'checkpoint'"),
    ("a.b.c=1", CONFIG, r"unknown key 'a' in the config"),
    # Malformed overrides
    ("trainer", CONFIG, r"found 'trainer', expected key=value"),
    ("=3", CONFIG, r"found '=3', expected key=value"),
    ("trainer.=3", CONFIG, r"found 'trainer\.=3', expected key=value"),
    ("trainer={", CONFIG, r"the value of 'trainer=\{' is not YAML"),
    ("model.channels.7=3", CONFIG, r"model\.channels has 1 items, found index '7'"),
    # Unknown types
    ("optim_wrapper.optimizer.type=adamw", CONFIG, r"optimizer\.type is 'adamw', .*did you mean 'AdamW'"),
    ("model.type=SmalCnn", CONFIG, r"model\.type is 'SmalCnn', .*did you mean 'SmallCnn'"),
    ("data.train.type=FashonMnist", CONFIG, r"data\.train\.type is 'FashonMnist', .*did you mean 'FashionMnist'"),
    ("param_scheduler.0.type=Cosin", CONFIG, r"param_scheduler\.0\.type is 'Cosin', .*did you mean 'Cosine'"),
    ("evaluator.0.type=Acuracy", CONFIG, r"evaluator\.0\.type is 'Acuracy', .*did you mean 'Accuracy'"),
    ("data.train.sampler=foo", CONFIG, r"data\.train\.sampler is 'foo', expected a sampler; known: default, infinite"),
    ("distributed.timeot=3", CONFIG, r"unknown key 'timeot' in distributed; .*did you mean 'timeout'"),
    ("distributed.timeout=0", CONFIG, r"distributed\.timeout is 0, expected a number above 0 and at most"),
    ("distributed.start_timeout=soon", CONFIG, r"distributed\.start_timeout is 'soon', expected a number"),
    ("distributed.bucket_cap_mb=-1", CONFIG, r"distributed\.bucket_cap_mb is -1, expected a number above 0"),
    ("distributed.first_bucket_mb=.inf", CONFIG, r"distributed\.first_bucket_mb is \.inf, expected a number above 0"),
    ("distributed.find_unused_parameters=maybe", CONFIG, r"find_unused_parameters is 'maybe', expected true or false"),
    ("distributed.broadcast_buffers=[]", CONFIG, r"broadcast_buffers is a list of 0, expected true or false"),
    ("distributed=2", CONFIG, r"distributed is 2, expected a map"),
    ("find_unused_parameters=true", CONFIG, r"find_unused_parameters.*write distributed\.find_unused_parameters=true"),
    ("mode=fast", CONFIG, r"mode is 'fast', expected one of eager, graph"),
    ("device=gpu", CONFIG, r"device 'gpu', expected auto, cpu, cuda or cuda:<index>"),
    ("device=cuda:99", CONFIG, r"device 'cuda:99', .*this machine has cpu"),
    # Wrong types
    ("model=3", CONFIG, r"model is 3, expected a map"),
    ("model=[1]", CONFIG, r"model is a list of 1, expected a map"),
    ("model={}", CONFIG, r"model\.type is missing"),
    ("model=null", CONFIG, r"model is missing"),
    ("model.channels=4", CONFIG, r"model\.channels is 4, expected a list"),
    ("model.channels=[a]", CONFIG, r"model\.channels\.0 is 'a', expected an integer"),
    ("data=null", CONFIG, r"data\.train is missing"),
    ("data.val.limit=0.5", CONFIG, r"data\.val\.limit is 0\.5, expected an integer"),
    ("data.train.shuffle=1", CONFIG, r"data\.train\.shuffle is 1, expected true or false"),
    ("trainer=null", CONFIG, r"max_steps and max_epochs are both missing or 0"),
    ("trainer.max_steps=1e3", CONFIG, r"trainer\.max_steps is 1e3, expected an integer"),
    ("optim_wrapper.lr=0.1", CONFIG, r"unknown key 'lr' in optim_wrapper; known: "),
    ("trainer.max_steps='3'", CONFIG, r"trainer\.max_steps is '3', expected an integer"),
    ("optim_wrapper.optimizer.lr=fast", CONFIG, r"optimizer\.lr is 'fast', expected a number"),
    ("optim_wrapper.optimizer=[]", CONFIG, r"optim_wrapper\.optimizer is a list of 0, expected a map"),
    ("optim_wrapper.clip_grad=1.0", CONFIG, r"clip_grad is 1\.0, expected a map .*\{max_norm: 1\.0\}"),
    ("default_hooks.checkpoint=3", CONFIG, r"default_hooks\.checkpoint is 3, expected a map"),
    ("param_scheduler=[3]", CONFIG, r"param_scheduler\.0 is 3, expected a map"),
    ("device=[1]", CONFIG, r"device is a list of 1, expected text"),
    ("work_dir=''", CONFIG, r"work_dir is empty"),
    # NaN, infinities and numbers that no type holds
    ("optim_wrapper.optimizer.lr=.nan", CONFIG, r"optimizer\.lr is \.nan, expected a number"),
    ("optim_wrapper.optimizer.lr=.inf", CONFIG, r"optimizer\.lr is \.inf, expected a number"),
    ("optim_wrapper.optimizer.lr=1e999", CONFIG, r"optimizer\.lr is 1e999, expected a number"),
    ("model.dropout=nan", CONFIG, r"model\.dropout is 'nan', expected a number"),
    ("trainer.max_steps=99999999999999999999", CONFIG, r"trainer\.max_steps is 9{20}, expected an integer"),
    ("trainer.max_steps=9223372036854775807", CONFIG, r"trainer\.max_steps is \d+, .*at most 2147483647"),
    ("data.train.batch_size=9223372036854775807", CONFIG, r"data\.train\.batch_size is \d+, .*at most"),
    ("model.num_classes=10000000000", CONFIG, r"model: .*num_classes is 10000000000"),
    # Impossible values
    ("optim_wrapper.optimizer.lr=-1", CONFIG, r"optimizer\.lr is -1, expected a number of at least 0"),
    ("optim_wrapper.optimizer.betas=[1.5, 0.9]", CONFIG,
     r"optimizer: .*betas\[0\] is 1\.5, expected a number in \[0, 1\)"),
    ("optim_wrapper.optimizer.betas=[0.9]", CONFIG, r"optimizer\.betas has 1 numbers, expected 2"),
    ("optim_wrapper.optimizer.weight_decay=-0.1", CONFIG, r"optimizer\.weight_decay is -0\.1"),
    ("optim_wrapper.optimizer={type: SGD, nesterov: true}", CONFIG, r"nesterov is true, expected momentum > 0"),
    ("optim_wrapper.clip_grad.max_norm=0", CONFIG, r"clip_grad\.max_norm is 0"),
    ("optim_wrapper.amp=fp8", CONFIG, r"optim_wrapper\.amp is 'fp8', expected off, bf16 or fp16"),
    ("trainer.max_steps=0", CONFIG, r"max_steps and max_epochs are both missing or 0"),
    ("trainer.max_epochs=-1", CONFIG, r"trainer\.max_epochs is -1"),
    ("trainer.accumulate=0", CONFIG, r"trainer\.accumulate is 0"),
    ("data.train.batch_size=0", CONFIG, r"data\.train\.batch_size is 0"),
    ("data.train.num_workers=-1", CONFIG, r"data\.train\.num_workers is -1"),
    ("data.train.limit=-1", CONFIG, r"data\.train: .*limit is -1"),
    ("data.train.std=0", CONFIG, r"data\.train: .*std is 0"),
    ("data.val.sampler=infinite", CONFIG, r"data\.val\.sampler is infinite"),
    ("seed=-1", CONFIG, r"seed is -1"),
    ("model.dropout=2", CONFIG, r"model: .*dropout is 2, expected a number in \[0, 1\)"),
    ("model.channels=[]", CONFIG, r"model: .*channels has 0 entries"),
    ("param_scheduler={type: Cosine, begin: 5, end: 2}", CONFIG, r"param_scheduler: .*end 2, expected a step after"),
    ("param_scheduler={type: Step, step_size: 0}", CONFIG, r"param_scheduler\.step_size is 0"),
    ("param_scheduler={type: MultiStep, milestones: [3, 2]}", CONFIG, r"milestones .*in ascending order"),
    ("param_scheduler=[{type: Cosine}, {type: Cosine}]", CONFIG, r"param_scheduler: .*overlapping"),
    ("default_hooks.checkpoint.max_keep=0", CONFIG, r"checkpoint\.max_keep is 0"),
    ("default_hooks.checkpoint.save_best=acuracy", CONFIG, r"save_best is 'acuracy', .*did you mean 'accuracy'"),
    ("default_hooks.logger.interval=0", CONFIG, r"logger\.interval is 0"),
    ("graph.cache_bytes=1XB", CONFIG, r"graph\.cache_bytes is '1XB', expected bytes"),
    ("model={type: Mlp, in_features: 2147483648, hidden: [100000000]}", 1, r"out of memory: .*smaller batch or model"),
    # Model and data that do not fit each other
    ("model.num_classes=5", CONFIG, r"model\.num_classes is 5, but data\.train has labels up to 9; set at least 10"),
    ("model={type: Mlp, num_classes: 5}", CONFIG, r"model\.num_classes is 5, but data\.train has labels up to 9"),
    ("model.image_size=30", CONFIG, r"image' of shape \[16, 1, 28, 28\], expected \[N, 1, 30, 30\]; set model"),
    ("model.in_channels=3", CONFIG, r"image' of shape \[16, 1, 28, 28\], expected \[N, 3, 28, 28\]; set model"),
    ("model={type: Mlp, in_features: 30}", CONFIG, r"\[16, 1, 28, 28\], .*set model\.in_features to 784"),
    ("data={train: {type: Text, path: data/text, context: 8}}", DATA, r"no tensor 'image'; .* holds: input, target"),
    # Data
    ("data.train={type: FashionMnist, root: data/nowhere}", DATA,
     r"no folder 'data/nowhere', .*install .*or set 'root'"),
    ("data.train={type: FashionMnist, root: data}", DATA,
     r"'data/train-images-idx3-ubyte': found nothing there nor at"),
    ("data.train.split=foo", CONFIG, r"data\.train\.split is 'foo', expected one of train, test"),
    ("data.train.images=data/missing", DATA, r"'data/missing': found nothing there nor at 'data/missing\.gz'"),
    ("data.train.images=data", DATA, r"'data': found no regular file"),
    ("data.train.images=data/empty", DATA, r"'data/empty': found 0 bytes"),
    ("data.train.images=data/truncated", DATA, r"'data/truncated': found 30000 bytes, expected 50192 .*truncated"),
    ("data.train.images=data/truncated.gz", DATA, r"'data/truncated\.gz': found damaged data .*unexpected end of file"),
    ("data.train.images=data/long", DATA, r"'data/long': found 50193 bytes, expected 50192"),
    ("data.train.images=data/long.gz", DATA, r"'data/long\.gz': found more bytes than its header tells"),
    ("data.train.images=data/corrupt.gz", DATA, r"'data/corrupt\.gz': found damaged data"),
    ("data.train.images=data/page.html", DATA, r"'data/page\.html': found first bytes 60 104, .*not an IDX file"),
    ("data.train.images=data/huge", DATA, r"'data/huge': found 50192 bytes, expected 3"),
    ("data.train.images=data/labels", DATA, r"images 'data/labels': .*name an idx3-ubyte file"),
    ("data.train.labels=data/images", DATA, r"labels 'data/images': .*name an idx1-ubyte file"),
    ("data.train.labels=data/label_10", DATA, r"labels 'data/label_10': found label 10 at index 5, expected 0 to 9"),
    ("data.val.labels=data/label_10", DATA, r"labels 'data/label_10': found label 10 at index 5"),
    ("data.train.labels=data/few", DATA, r"64 images in 'data/images' and 3 labels in 'data/few'"),
    ("data.train={type: FashionMnist, images: data/no_images, labels: data/no_labels}", DATA, r"found no sample"),
    ("data.train={type: Safetensors}", CONFIG, r"data\.train\.path is missing"),
    ("data.train={type: Safetensors, path: data/images}", DATA, r"'data/images' cannot be used: its header"),
    ("data.train={type: Safetensors, path: data/nowhere}", DATA, r"cannot open 'data/nowhere': No such file"),
    ("data.train={type: Safetensors, path: data/bad_label.safetensors, batch_size: 8, shuffle: false}", DATA,
     r"got class 12 .*, expected 0 to 9; .*num_classes to 13"),
    ("data.train={type: FashionMnist, images: data/images, labels: data/labels, drop_last: true, batch_size: 100}",
     CONFIG, r"data\.train: .*64 samples, expected at least batch_size 100 with drop_last"),
    # Scripts
    ("model={type: torchscript}", CONFIG, r"model\.path is missing"),
    ("model={type: torchscript, path: nowhere.pt}", CONFIG, r"model: .*no TorchScript file 'nowhere\.pt'"),
    ("model={type: torchscript, path: data}", CONFIG, r"model: .*no TorchScript file 'data'"),
    ("model={type: torchscript, path: data/images}", CONFIG, r"'data/images' is not a TorchScript archive"),
    # Places that cannot be written
    ("work_dir=data/images/run", CONFIG, r"cannot write 'data/images/run.*.*change work_dir"),
    ("work_dir=data/images", CONFIG, r"cannot write 'data/images.*.*change work_dir"),
    ("work_dir=/proc/run", CONFIG, r"cannot write '/proc/run.*.*change work_dir"),
]
# Edits of the config file: what is replaced by what, and what the message must say at that line.
EDITS = [
    ("    lr: 1.0e-3", "    lr: -1", r"optim_wrapper\.optimizer\.lr is -1"),
    ("    lr: 1.0e-3", "    lrr: 1.0e-3", r"unknown key 'lrr' in optim_wrapper\.optimizer; .*did you mean 'lr'"),
    ("    lr: 1.0e-3", "    lr: [1]", r"optimizer\.lr is a list of 1, expected a number"),
    ("    lr: 1.0e-3", "    type: AdamW", r"optimizer\.type is given twice, first at \S+:16"),
    ("    lr: 1.0e-3", "    <<: 3", r"merge key"),
    ("    lr: 1.0e-3", "   lr: 1.0e-3", r"this is not YAML"),
    ("    lr: 1.0e-3", "\tlr: 1.0e-3", r"this is not YAML: .*tab"),
    ("    lr: 1.0e-3", "    lr: !number 1", r"optimizer\.lr has the tag"),
    ("    lr: 1.0e-3", "    lr: \x01", r"control character 1"),
    ("    batch_size: 16", "    batch_size: sixteen", r"data\.train\.batch_size is 'sixteen', expected an integer"),
    ("model:\n", "modle:\n", r"found key 'modle', but model is missing; did you mean 'model'"),
    ("  type: SmallCnn", "  tpye: SmallCnn", r"found key 'tpye', but model\.type is missing; did you mean 'type'"),
    ("    type: FashionMnist", "    Type: FashionMnist", r"found key 'Type', but data\.train\.type is missing; .*'type'"),
    ("  dropout: 0.1", "  dropout: 0.1\n---", r"this is not YAML|2 YAML documents"),
]


def idx(type_code, shape, payload):
    return bytes([0, 0, type_code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + payload


def safetensors(tensors):
    header, data = {}, b""
    for name, (dtype, shape, payload) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(payload)]}
        data += payload
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_data(folder):
    folder.mkdir()
    images = idx(8, [64, 28, 28], random.Random(0).randbytes(64 * 28 * 28))
    labels = bytes(i % 10 for i in range(64))
    packed = gzip.compress(images)
    rows = [0.0] * (64 * 28 * 28)
    files = {
        "images": images, "labels": idx(8, [64], labels), "labels.gz": gzip.compress(idx(8, [64], labels)),
        "empty": b"", "truncated": images[:30000], "truncated.gz": packed[:len(packed) // 2],
        "long": images + b"x", "long.gz": gzip.compress(images + b"x"),
        "corrupt.gz": packed[:9000] + bytes([packed[9000] ^ 255]) + packed[9001:],
        "page.html": b"<html>not found</html>", "huge": images[:4] + b"\xff" + images[5:],
        "label_10": idx(8, [64], labels[:5] + b"\x0a" + labels[6:]), "few": idx(8, [3], b"\0\1\2"),
        "no_images": idx(8, [0, 28, 28], b""), "no_labels": idx(8, [0], b""),
        "text": b"to be or not to be, that is the question. " * 20,
        "other_text": b"completely different characters: XYZ 0123456789 " * 20,
        "bad_label.safetensors": safetensors({
            "image": ("F32", [64, 1, 28, 28], struct.pack(f"<{len(rows)}f", *rows)),
            "target": ("I64", [64], struct.pack("<64q", *[12 if i == 30 else i % 10 for i in range(64)]))}),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
