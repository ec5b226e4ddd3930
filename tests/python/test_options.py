"""Every option of every entry point changes what happens, or is refused by its name with the way out."""

import pathlib
import re

import pytest
import torch

import duet
import toy

ENTRIES = ["eager", "graph", "graph_step"]
HERE = pathlib.Path(__file__).parent


def make(entry, **options):
    """A trainer, or a step with its optimizer, over the model of toy.py."""
    model = options.pop("model", None) or toy.model()
    loss = options.pop("loss", toy.loss)
    if entry == "graph_step":
        optimizer = options.pop("optimizer", lambda p: torch.optim.SGD(p, lr=0.1))(model.parameters())
        return duet.graph_step(model, loss, optimizer, **options), model
    options.setdefault("optimizer", duet.SGD(lr=0.1))
    options.setdefault("default_hooks", False)
    return duet.make_trainer(entry, model, loss, **options), model


def known_options(entry):
    with pytest.raises(duet.ConfigError, match="there is no option 'nope'") as error:
        make(entry, nope=1)
    return re.search(r"known: ([^;]*)", str(error.value)).group(1).split(", ")


def bits(model):
    return b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())


def trained(entry, batches=None, **options):
    """The weights after some steps."""
    torch.manual_seed(5)
    trainer, model = make(entry, **options)
    step = trainer if entry == "graph_step" else trainer.step
    for batch in batches or toy.batches(8):
        step(batch)
    return bits(model)


def fitted(observe, batches=6, validation=False, **base):
    def outcome(entry, **options):
        Counting.validations = 0
        trainer, model = make(entry, **{"max_steps": 4, **base, **options})
        trainer.fit(toy.batches(batches), toy.batches(4) if validation else None)
        return observe(trainer, model)

    return outcome


def validations(_trainer, _model):
    return Counting.validations


class Counting(duet.Hook):
    validations = 0

    def after_val(self, run):
        Counting.validations += 1


class Count(duet.Metric):
    def names(self):
        return ["count"]

    def reset(self):
        self.count = 0

    def add(self, batch, outputs, weight):
        self.count += 1

    def compute(self):
        Count.latest = self.count
        return {"count": self.count}


def forward(model, batch):
    return model(batch["x"])


def of_prediction(prediction, batch):
    return torch.nn.functional.cross_entropy(prediction, batch["y"])


def predicted(entry, **options):
    trainer, _ = make(entry, **{"loss": of_prediction, "forward": forward, **options})
    return {name: (t.dtype, t.tolist()) for name, t in trainer.predict(toy.batches(1)[0]).items()}


def validated(entry, **options):
    trainer, _ = make(entry, **options)
    return trainer.validate(toy.batches(3))


def calls_of_the_loss(steps=40, sizes=(12,), changes=False, **base):
    """How often host code runs in graph mode: at all steps but those that are replayed without a check."""

    def outcome(entry, **options):
        calls = []

        def loss(model, batch):
            calls.append(1)
            chosen = batch["x"][batch["x"] > 0] if changes else batch["x"]  # a shape that depends on values
            return toy.loss(model, batch) + chosen.sum() * 0

        trainer, _ = make(entry, loss=loss, **{"check": "off", "verify_interval": 0, **base, **options})
        trainer.set_mode("graph")
        for batch in [toy.batches(1, size=size)[0] for size in sizes] * steps:
            (trainer if entry == "graph_step" else trainer.step)(batch)
        return len(calls)

    return outcome


def key_that_changes():
    key_that_changes.calls = getattr(key_that_changes, "calls", 0) + 1
    return key_that_changes.calls % 2


def not_finite():
    batches = toy.batches(6)
    batches[3]["x"] = batches[3]["x"] / 0
    return batches


def validated_count(trainer, _model):
    return Count.latest


def uneven(entry, **options):
    trainer, model = make(entry, **options)
    batches = toy.batches(2)
    batches[1] = {name: tensor[:4] for name, tensor in batches[1].items()}
    trainer.step_accumulated(batches)
    return bits(model)


def files(work_dir):
    def outcome(entry, **options):
        trainer, _ = make(entry, max_steps=2, default_hooks=True, **options)
        trainer.fit(toy.batches(2))
        return sorted(path.name for path in pathlib.Path(work_dir).glob("*"))

    return outcome


# Of an option of the trainers: a value that is not its default, and what that must change.
def trainer_proofs(work_dir):
    def steps(trainer, _model):
        return trainer.progress.step

    return {
        "loss": (lambda model, batch: 2 * toy.loss(model, batch), trained),
        "forward": (forward, lambda entry, **o: predicted(entry, **{"forward": None, **o})),
        "validation_step": (lambda model, batch: {"figure": model(batch["x"]).mean()}, validated),
        "predict_step": (lambda model, batch: model(batch["x"]) * 2, predicted),
        "weight": (lambda batch: 1.0, uneven),
        "optimizer": (duet.SGD(lr=0.2), trained),
        "schedules": (duet.Constant(factor=0.5, end=100), trained),
        "clip_grad": (1e-2, trained),
        "amp": (torch.bfloat16, trained),
        "amp_eval": (False, lambda entry, **o: predicted(entry, amp=torch.bfloat16, **o)),
        "loss_scale": (duet.LossScale(init_scale=3.0), trained),
        "non_finite": ("skip", lambda entry, **o: trained(entry, batches=not_finite(), **o)),
        "param_groups": ([{"params": ["hidden.weight"], "lr": 0.2}], lambda e, **o: trained(e, allow_untrained=True, **o)),
        "allow_untrained": (True, lambda e, **o: trained(e, param_groups=[{"params": ["hidden.weight"]}], **o)),
        "freeze": ("hidden", trained),
        "hooks": ([Counting()], fitted(validations, batches=4, validation=True)),
        "metrics": ([Count()], validated),
        "device": ("nowhere", trained),
        "work_dir": (str(work_dir), files(work_dir)),
        "default_hooks": (True, lambda e, **o: files(work_dir)(e, work_dir=str(work_dir)) if o else []),
        "max_steps": (3, fitted(steps)),
        "max_epochs": (1, fitted(steps, batches=3, max_steps=0)),
        "max_seconds": (1e-9, fitted(steps, max_steps=1000)),
        "accumulate": (2, fitted(lambda _, model: bits(model))),
        "val_interval": (2, fitted(validations, validation=True, hooks=[Counting()])),
        "val_by_epoch": (True, fitted(validations, validation=True, batches=2, val_interval=1, hooks=[Counting()])),
        "limit_train_batches": (2, fitted(steps, max_steps=0, max_epochs=1)),
        "limit_val_batches": (2, fitted(validated_count, batches=4, validation=True, metrics=[Count()])),
        "limit_test_batches": (2, lambda e, **o: make(e, metrics=[Count()], **o)[0].test(toy.batches(3))),
        "limit_predict_batches": (
            2,
            lambda e, **o: len(make(e, loss=of_prediction, forward=forward, **o)[0].predict_all(toy.batches(3))),
        ),
        **graph_proofs(),
    }


def graph_proofs():
    return {
        "fallback": ("strict", calls_of_the_loss(changes=True)),
        "check": ("every", calls_of_the_loss()),
        "check_budget": (1.0, calls_of_the_loss(steps=1200, check="budget", **{"check_budget": 0.0})),
        "verify_interval": (1, calls_of_the_loss()),
        "cache_bytes": (1, calls_of_the_loss(sizes=(12, 5))),
        "graph_key": (key_that_changes, calls_of_the_loss()),
    }


def step_proofs():
    return {
        "forward": (forward, lambda e, **o: trained(e, loss=of_prediction, **o)),
        "clip_grad": (duet.ClipValue(clip_value=1e-2), trained),
        "clip_grad_norm": (1e-2, trained),
        "clip_grad_value": (1e-2, trained),
        "amp": (torch.bfloat16, trained),
        "loss_scale": (duet.LossScale(init_scale=3.0), trained),
        "non_finite": ("skip", lambda entry, **o: trained(entry, batches=not_finite(), **o)),
        "mode": ("eager", lambda entry, **o: make(entry, **o)[0].mode),
        **graph_proofs(),
    }


# What only several ranks, or a CPU with the right instructions, can show.
ELSEWHERE = {
    "fuse": ("graph/kernels/image_programs_test.cpp", "Fuse::kOff"),
    "bucket_bytes": ("distributed/program_test.cpp", "bucket_bytes"),
    "first_bucket_bytes": ("distributed/program_test.cpp", "first_bucket_bytes"),
    "find_unused_parameters": ("distributed/distributed_errors_test.cpp", "find_unused_parameters"),
    "broadcast_buffers": ("distributed/resume_test.cpp", "broadcast_buffers"),
}


def result(outcome, entry, **options):
    torch.manual_seed(5)
    try:
        return outcome(entry, **options)
    except (duet.Error, TypeError) as error:
        return str(error)


def named_arguments(entry):
    return ["clip_grad", "clip_grad_norm", "clip_grad_value", "mode"] if entry == "graph_step" else []


def proofs(entry, tmp_path):
    return step_proofs() if entry == "graph_step" else trainer_proofs(tmp_path)


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_option_changes_what_happens(entry, tmp_path):
    names = known_options(entry) + named_arguments(entry)
    known = proofs(entry, tmp_path)
    assert sorted({*names}) == sorted({*known, *ELSEWHERE} & {*names}), "an option has no proof"
    idle = []
    for name in names:
        if name in ELSEWHERE:
            file, word = ELSEWHERE[name]
            assert word in (HERE.parent / file).read_text()
            continue
        value, outcome = known[name]
        if result(outcome, entry) == result(outcome, entry, **{name: value}):
            idle.append(name)
    assert not idle, "these change nothing"


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
        make("graph_step", optimizer=lambda p: getattr(torch.optim, name)(p), **options)


@pytest.mark.parametrize("mode", ["graph", "eager"])
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
    ours, theirs = toy.model(), toy.model()
    optimizers = make_optimizer(ours.parameters()), make_optimizer(theirs.parameters())
    step = duet.graph_step(ours, toy.loss, optimizers[0], mode=mode, non_finite="skip", clip_grad_norm=0.1)
    bad = toy.batches(10)
    for i in (0, 4, 7):
        bad[i]["x"] = bad[i]["x"] * float("inf")
    for module in (ours, theirs):
        module.norm.eval()  # statistics are the model's, not the step's
        module.drop.eval()
    for i, batch in enumerate(bad):
        step(batch)
        if i not in (0, 4, 7):
            toy.loop_step(theirs, toy.loss, optimizers[1], batch, 0.1)
        toy.assert_same_bits(ours.state_dict(), theirs.state_dict())
    states = [{p: state for p, state in enumerate(o.state.values())} for o in optimizers]
    toy.assert_same_bits(*states)


@pytest.mark.parametrize("mode", ["graph", "eager"])
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
