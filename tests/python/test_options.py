"""Every option of every entry point changes what happens, or is refused by its name with the way out."""

import functools
import itertools
import re

import pytest
import torch

import duet
import toy

ENTRIES = ["eager", "graph", "graph_step"]


def make(entry, loss=toy.loss, **options):
    """A trainer, or a step with its optimizer, and the model of toy.py."""
    model = toy.model()
    if entry == "graph_step":
        optimizer = options.pop("optimizer", toy.sgd)(model)
        return duet.graph_step(model, loss, optimizer, **options), model
    options = {"optimizer": duet.SGD(lr=0.1), "default_hooks": False, "max_steps": 4, **options}
    return duet.make_trainer(entry, model, loss, **options), model


def known_options(entry):
    with pytest.raises(duet.ConfigError, match="there is no option 'nope'") as error:
        make(entry, nope=1)
    return re.search(r"known: ([^;]*)", str(error.value)).group(1).split(", ")


class Validations(duet.Hook):
    count = 0

    def after_val(self, run):
        Validations.count += 1


class Batches(duet.Metric):
    count = 0

    def names(self):
        return ["batches"]

    def reset(self):
        self.count = 0

    def add(self, batch, outputs, weight):
        self.count += 1

    def compute(self):
        Batches.count = self.count
        return {"batches": self.count}


def plain(value):
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return (value.dtype, value.tolist()) if isinstance(value, torch.Tensor) else value


def attempted(call, *arguments):
    try:
        return plain(call(*arguments))
    except (duet.Error, TypeError) as error:
        return str(error)


def observed(entry, folder, steps=20, data=None, loss=toy.loss, **options):
    """All that a run shows of itself, as text. Where a call fails it is what the error says."""
    calls, count, before = [], Validations.count, {*folder.rglob("*")}
    Batches.count = 0

    def counted(*arguments):
        calls.append(1)
        return loss(*arguments)

    torch.manual_seed(5)
    try:
        trainer, model = make(entry, counted, **options)
    except (duet.Error, TypeError) as error:
        return str(error)
    step = trainer if entry == "graph_step" else trainer.step
    data, validation = data or toy.batches(3), toy.batches(4, seed=2)
    seen = [] if entry == "graph_step" else [
        attempted(trainer.fit, data, validation), trainer.progress.step, Validations.count - count, Batches.count,
        attempted(trainer.predict, data[0]), attempted(trainer.validate, validation), attempted(trainer.test, validation),
        attempted(lambda: len(trainer.predict_all(validation))),
        attempted(trainer.step_accumulated, [data[0], {name: tensor[:4] for name, tensor in data[1].items()}]),
    ]  # fmt: skip
    seen += [attempted(step, batch) for batch in data] + [trainer.mode]
    trainer.set_mode("graph")
    calls.clear()
    seen += [attempted(step, batch) for batch in [data[0], toy.batches(1, size=5)[0]] * steps]
    weights = [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
    return repr((seen, len(calls), weights, sorted(path.name for path in {*folder.rglob("*")} - before)))


def with_infinity():
    batches = toy.batches(6)
    batches[3]["x"] = batches[3]["x"] / 0
    return batches


def doubled(model, batch):
    return 2 * toy.loss(model, batch)


def of_a_changing_shape(model, batch):
    return toy.loss(model, batch) + batch["x"][batch["x"] > 0].sum() * 0


def mean(model, batch):
    return {"figure": model(batch["x"]).mean()}


OF_PREDICTION = {"loss": toy.loss_of, "forward": toy.forward}
HIDDEN = [{"params": ["hidden.weight"], "lr": 0.2}]

# Of an option: a value that is not its default, which must change what is observed, and the options beside it.
OF_BOTH = {
    "forward": (toy.forward, {"loss": toy.loss_of}),
    "clip_grad": (duet.ClipValue(clip_value=1e-2), {}),
    "amp": (torch.bfloat16, {}),
    "loss_scale": (duet.LossScale(init_scale=3.0), {}),
    "non_finite": ("skip", {"data": with_infinity()}),
    "fallback": ("strict", {"loss": of_a_changing_shape}),
    "check": ("every", toy.UNCHECKED),
    "check_budget": (1.0, {**toy.UNCHECKED, "check": "budget", "check_budget": 0.0, "steps": 600}),
    "verify_interval": (1, toy.UNCHECKED),
    "cache_bytes": (1, toy.UNCHECKED),
    "graph_key": (itertools.count().__next__, toy.UNCHECKED),
}
OF_STEPS = {**OF_BOTH, "clip_grad_norm": (1e-2, {}), "clip_grad_value": (1e-2, {}), "mode": ("eager", {})}


def of_trainers(work_dir):
    return {
        **OF_BOTH,
        "loss": (doubled, {}),
        "validation_step": (mean, {}),
        "predict_step": (lambda model, batch: model(batch["x"]) * 2, OF_PREDICTION),
        "weight": (lambda batch: 1.0, {}),
        "optimizer": (duet.SGD(lr=0.2), {}),
        "schedules": (duet.Constant(factor=0.5, end=100), {}),
        "amp_eval": (False, {"amp": torch.bfloat16, **OF_PREDICTION}),
        "param_groups": (HIDDEN, {"allow_untrained": True}),
        "allow_untrained": (True, {"param_groups": HIDDEN}),
        "freeze": ("hidden", {}),
        "hooks": ([Validations()], {}),
        "metrics": ([Batches()], {}),
        "device": ("nowhere", {}),
        "work_dir": (str(work_dir / "a"), {"default_hooks": True}),
        "default_hooks": (True, {"work_dir": str(work_dir / "b")}),
        "max_steps": (3, {}),
        "max_epochs": (1, {"max_steps": 0}),
        "max_seconds": (1e-9, {"max_steps": 1000}),
        "accumulate": (2, {}),
        "val_interval": (2, {"hooks": [Validations()]}),
        "val_by_epoch": (True, {"val_interval": 1, "hooks": [Validations()]}),
        "limit_train_batches": (2, {"max_steps": 0, "max_epochs": 1}),
        **{f"limit_{kind}_batches": (2, {"metrics": [Batches()], **OF_PREDICTION}) for kind in ("val", "test", "predict")},
    }


# What leaves no trace by design, or what only several ranks, or a CPU with the right instructions, can show: tested in C++.
ELSEWHERE = ("num_sanity_val_steps deterministic log_grad_norm sync_batchnorm fuse fuse_after bucket_bytes first_bucket_bytes "
             "find_unused_parameters broadcast_buffers").split()  # fmt: skip


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_option_changes_what_happens(entry, tmp_path):
    names, known = known_options(entry), of_trainers(tmp_path)
    if entry == "graph_step":
        names, known = {*names, "clip_grad", "clip_grad_norm", "clip_grad_value", "mode"}, OF_STEPS
    assert sorted(names) == sorted({*known, *ELSEWHERE} & {*names}), "an option has no proof"
    idle, without = [], {}
    for name in names:
        if name in ELSEWHERE:
            continue
        value, beside = known[name]
        if str(beside) not in without:
            without[str(beside)] = observed(entry, tmp_path, **beside)
        if without[str(beside)] == observed(entry, tmp_path, **{**beside, name: value}):
            idle.append(name)
    assert not idle, "these change nothing"
    # Else every option would seem to change something.
    assert without["{}"] == observed(entry, tmp_path, amp=None, clip_grad=None)


@pytest.mark.parametrize("name", sorted(set(known_options("graph")) - set(known_options("graph_step"))))
def test_a_step_refuses_what_only_trainers_take(name):
    if name in ("loss", "optimizer", "clip_grad"):
        return  # its own arguments
    for value in (None, 1, "x"):
        with pytest.raises(duet.ConfigError, match=rf"\[graph_step\] '{name}' is an option of the trainers.*; \w+"):
            make("graph_step", **{name: value})


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("clip_grad", "big"),
        ("clip_grad", True),
        ("amp", True),
        ("amp", "bf16"),
        ("non_finite", "drop"),
        ("loss_scale", 1024),
        ("check", "sometimes"),
        ("cache_bytes", "2 GiB"),
        ("graph_key", 3),
        ("forward", 3),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_the_words_of_the_call(entry, option, value):
    caller = "graph_step" if entry == "graph_step" else "Trainer"
    with pytest.raises(duet.ConfigError, match=rf"\[{caller}\] {option} is .*{value}.*, expected "):
        make(entry, **{option: value})


def test_ways_of_clipping_exclude_each_other():
    with pytest.raises(duet.ConfigError, match="clip_grad_norm and clip_grad,"):
        make("graph_step", clip_grad_norm=1.0, clip_grad=1.0)


@pytest.mark.parametrize("options", [{"non_finite": "skip"}, {"non_finite": "raise"}, {"amp": torch.float16}])
@pytest.mark.parametrize("name", ["NAdam", "Adamax"])
def test_an_optimizer_whose_steps_cannot_be_skipped_is_told_so(name, options):
    with pytest.raises(duet.ConfigError, match=r"\[graph_step\] .*non_finite.*SGD"):
        make("graph_step", optimizer=lambda m: getattr(torch.optim, name)(m.parameters()), **options)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
        lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True),
        lambda p: torch.optim.Adagrad(p, lr=1e-2, lr_decay=0.1),
    ],
)
def test_a_step_that_is_skipped_changes_nothing_and_the_others_are_those_of_the_loop(make_optimizer, mode):
    def run(step, module, optimizer):
        module.norm.eval()  # statistics are the model's, not the step's
        module.drop.eval()
        states = []
        for i, batch in enumerate(toy.batches(10)):
            if i not in (0, 4, 7):
                step(batch)
            elif not isinstance(step, functools.partial):  # the loop leaves it out
                step({**batch, "x": batch["x"] * float("inf")})
            states.append(toy.twin(module.state_dict()))
        return states

    clip = functools.partial(torch.nn.utils.clip_grad_norm_, max_norm=0.1)
    toy.same_as_loop(
        run, optimizer=lambda m: make_optimizer(m.parameters()), clip=clip, mode=mode, non_finite="skip", clip_grad_norm=0.1
    )


def test_amp_and_loss_scale_are_those_of_torch(mode):
    ours, theirs = toy.model(), toy.model()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2, fused=True) for m in (ours, theirs)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
    scale = duet.LossScale(init_scale=2.0**24, growth_interval=3)
    step = duet.graph_step(ours, toy.loss, optimizers[0], mode=mode, amp=torch.float16, loss_scale=scale, clip_grad=0.1)
    for batch in toy.batches(12):
        state = torch.get_rng_state()
        step(batch)
        torch.set_rng_state(state)
        optimizers[1].zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = toy.loss(theirs, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizers[1])
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        scaler.step(optimizers[1])
        scaler.update()
        toy.assert_same_bits(ours.state_dict(), theirs.state_dict())
