"""duet.graph_step against the loop that it takes the place of."""

import functools
import random

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import lr_scheduler

import duet
import toy

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.05),
    "sgd momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-3, dampening=0.1),
    "sgd nesterov": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, maximize=True),
    "sgd fused": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=2e-3, weight_decay=1e-2),
    "adam amsgrad": lambda groups: torch.optim.Adam(groups, lr=2e-3, amsgrad=True, maximize=True),
    "adam fused": lambda groups: torch.optim.Adam(groups, lr=2e-3, weight_decay=1e-2, amsgrad=True, fused=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=2e-3, betas=(0.8, 0.99), eps=1e-7),
    "adamw fused": lambda groups: torch.optim.AdamW(groups, lr=2e-3, fused=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-3),
    "rmsprop all": lambda groups: torch.optim.RMSprop(groups, lr=1e-3, momentum=0.9, centered=True, weight_decay=1e-3),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-2, lr_decay=1e-3, weight_decay=1e-3),
    "adagrad fused": lambda groups: torch.optim.Adagrad(groups, lr=1e-2, initial_accumulator_value=0.1, fused=True),
    # apart: they read values back, or are recorded with each of their numbers
    "adamax": lambda groups: torch.optim.Adamax(groups, lr=1e-3),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=1e-3),
    "adamw foreach": lambda groups: torch.optim.AdamW(groups, lr=2e-3, foreach=True),
    "adadelta": lambda groups: torch.optim.Adadelta(groups, lr=1e-2),
    "sgd foreach": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, foreach=True),
}


def groups_of(module):
    decayed = [p for name, p in module.named_parameters() if p.dim() > 1]
    rest = [p for name, p in module.named_parameters() if p.dim() <= 1]
    return [{"params": decayed}, {"params": rest, "weight_decay": 0.0, "lr": 1e-3}]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_has_the_bits_of_the_loop_with_groups_scheduler_and_clipping(name):
    data, steps = toy.batches(20), 80

    def run(step, module, optimizer):
        scheduler, losses = lr_scheduler.CosineAnnealingLR(optimizer, T_max=300), []
        for i in range(steps):
            losses.append(step(data[i % len(data)]))
            scheduler.step()
        return losses

    clip = functools.partial(clip_grad_norm_, max_norm=0.5)
    step = toy.same_as_loop(run, optimizer=lambda m: OPTIMIZERS[name](groups_of(m)), clip=clip, clip_grad_norm=0.5)
    assert toy.captured(step.report()) == ["step"], step.report()
    assert toy.replays(step.report()) >= steps - 20


class KeepsGradients(torch.optim.Optimizer):
    """Steps with the gradient of this step and of the last one."""

    def __init__(self, groups):
        super().__init__(groups, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in (p for group in self.param_groups for p in group["params"]):
            state = self.state[parameter]
            parameter.sub_(parameter.grad + 0.5 * state.get("kept", torch.zeros(())), alpha=0.05 / (1 + self.taken(state)))
            state["kept"] = parameter.grad

    def taken(self, state):
        state["step"] = state.get("step", torch.zeros(())) + 1
        return state["step"].item()


@pytest.mark.parametrize("change", ["none", "mode", "state", "rate"])
def test_an_optimizer_that_is_called_apart_may_keep_gradients_and_be_changed(change):
    def run(step, module, optimizer):
        losses = []
        for i, batch in enumerate(toy.batches(60)):
            if change == "mode" and i % 20 == 10 and hasattr(step, "set_mode"):
                step.set_mode("graph" if i == 30 else "eager")
            if change == "state" and i == 30:
                optimizer.load_state_dict(toy.twin(optimizer.state_dict()))
            if change == "rate" and i == 30:
                optimizer.param_groups[0]["lr"] = 0.01
            losses.append(step(batch))
            losses.append([p.grad.clone() for p in module.parameters()])
        return losses

    step = toy.same_as_loop(run, optimizer=lambda m: KeepsGradients(m.parameters()))
    assert toy.captured(step.report()) == ["step"] and toy.replays(step.report()) >= (15 if change == "mode" else 50), step.report()


def test_a_strict_step_has_its_optimizer_in_it():
    module = toy.model()
    step = duet.graph_step(module, toy.loss, torch.optim.NAdam(module.parameters()), fallback="strict")
    with pytest.raises(duet.GraphError, match="_local_scalar_dense reads a value back"):
        for batch in toy.batches(3):
            step(batch)


class Counts(torch.optim.SGD):
    """Numbers that no tensor holds, random ones among them; reads none back."""

    counted = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.counted += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=(1 + random.random()) * 0.1 / self.counted)


BY_THEMSELVES = {
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "adadelta": torch.optim.Adadelta,
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
    "counts": lambda p: Counts(p, lr=0.1),
    "keeps gradients": KeepsGradients,
}


@pytest.mark.parametrize("explains", [(), (0,), (5, 30)], ids=["never", "first", "later"])
@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_an_optimizer_steps_as_often_as_in_the_loop(name, explains):
    def run(step, module, optimizer):
        random.seed(3)
        losses = []
        for i, batch in enumerate(toy.batches(60)):
            if i in explains and hasattr(step, "explain"):
                assert step.explain(batch).captured or i == 0 or name == "counts"
            losses.append(step(batch))
        return losses + [random.random(), getattr(optimizer, "counted", 0)]

    step = toy.same_as_loop(run, optimizer=lambda m: BY_THEMSELVES[name](m.parameters()), check="off", verify_interval=0)
    assert toy.captured(step.report()) == ["step"] and toy.replays(step.report()) >= 40, step.report()


def test_in_mode_eager_nothing_is_said_of_replays(capfd):
    module = toy.model()
    step = duet.graph_step(module, toy.loss, torch.optim.NAdam(module.parameters()), mode="eager")
    for batch in toy.batches(20):
        step(batch)
    assert "warning" not in capfd.readouterr().err
    step.set_mode("graph")
    for batch in toy.batches(20):
        step(batch)
    assert toy.captured(step.report()) == ["step"] and capfd.readouterr().err.count("warning") == 1


def test_a_change_that_is_refused_is_so_until_it_is_taken_back():
    module = toy.model()
    optimizer = torch.optim.NAdam(module.parameters())
    step = duet.graph_step(module, toy.loss, optimizer)
    batches = toy.batches(6)
    step(batches[0])
    hook = optimizer.register_step_post_hook(lambda *_: None)
    for batch in batches[1:3]:
        with pytest.raises(duet.ConfigError, match="hooks"):
            step(batch)
    hook.remove()
    for batch in batches[3:]:
        step(batch)



def test_leaves_the_training_flags_to_the_loop():
    def run(step, module, optimizer):
        for i, batch in enumerate(toy.batches(12)):
            module.norm.train(i % 4 < 2)
            step(batch)
        assert module.drop.training

    toy.same_as_loop(run)


def test_frozen_and_unused_parameters():
    def make():
        module = toy.model()
        module.hidden.bias.requires_grad_(False)
        return module

    def unused(model, batch):
        return (model.hidden(batch["x"]) ** 2).mean() + 0 * model.scale.sum()

    trained = lambda m: torch.optim.Adam([p for p in m.parameters() if p.requires_grad])  # noqa: E731
    toy.same_as_loop(toy.over(toy.batches(5)), unused, make, trained)


def test_amp_in_the_loss_function():
    def amp(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return toy.loss(model, batch)

    step = toy.same_as_loop(toy.over(toy.batches(30)), amp)
    assert toy.captured(step.report()) == ["step"], step.report()


def test_returns_what_the_loss_function_logs():
    def with_log(model, batch):
        prediction = model(batch["x"])
        accuracy = (prediction.argmax(1) == batch["y"]).float().mean()
        return toy.loss_of(prediction, batch), {"accuracy": accuracy}

    module = toy.model()
    step = duet.graph_step(module, with_log, toy.sgd(module))
    for batch in toy.batches(4):
        step(batch)
        assert 0 <= step.log["accuracy"] <= 1


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
def test_sparse_gradients_run_op_by_op(make):
    step = toy.same_as_loop(
        toy.over([{"x": torch.tensor([i, 3, 5])} for i in range(10)]),
        lambda model, batch: (model(batch["x"]) ** 2).mean(),
        lambda: torch.nn.Embedding(20, 4, sparse=True),
        lambda module: make(module.parameters(), lr=0.1),
    )
    assert "parse" in step.report()[-1]["reason"]


def test_torch_compile_within_the_loss_runs_op_by_op():
    class Compiled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3))
            self.compiled = [torch.compile(self.net, backend="aot_eager")]  # in a list: no module of this one

    step = toy.same_as_loop(toy.over(toy.batches(4)), lambda m, b: toy.loss_of(m.compiled[0](b["x"]), b), Compiled, toy.sgd)
    assert [report["state"] for report in step.report()] == ["eager"]
    reason = step.report()[0]["reason"]
    assert "handed to Python" in reason or "device meta" in reason  # whichever of what it compiles with comes first


def logs_scores(model, batch):
    return toy.loss(model, batch), {"scores": model(batch["x"])}


# What graph_step is given: a module, a loss, an optimizer of the whole model, further options; and what it says.
MISTAKES = {
    r"loss is MSELoss\(\), expected .*with forward=": lambda m: duet.graph_step(m, torch.nn.MSELoss(), toy.sgd(m)),
    "LBFGS": lambda m: duet.graph_step(m, toy.loss, torch.optim.LBFGS(m.parameters())),
    "no parameter of the model": lambda m: duet.graph_step(m.hidden, toy.loss, torch.optim.SGD(m.output.parameters(), lr=0.1)),
    "no trainable parameter": lambda m: duet.graph_step(m, toy.loss, torch.optim.SGD(m.norm.requires_grad_(False).parameters())),
    "no option 'chek'.*check": lambda m: duet.graph_step(m, toy.loss, toy.sgd(m), chek="every"),
    "torch.nn.Module|named_parameters|expected one of torch.optim": lambda m: duet.graph_step(m, toy.loss, "adam"),
    r"'scores'.*\[12, 3\].*0-dim": lambda m: duet.graph_step(m, logs_scores, toy.sgd(m))(toy.batches(1)[0]),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_errors_name_what_is_wrong(message):
    with pytest.raises(duet.ConfigError, match=message):
        MISTAKES[message](toy.model())


def test_an_exception_of_the_loss_function_passes_and_leaves_the_step_usable():
    fails = []

    def loss(model, batch):
        if fails:
            raise KeyError(fails.pop())
        return toy.loss(model, batch)

    def run(step, module, optimizer):
        for i, batch in enumerate(toy.batches(10)):
            if i in (0, 1, 5):
                state = torch.get_rng_state()
                fails.append("mine")
                with pytest.raises(KeyError, match="mine"):
                    step(batch)
                torch.set_rng_state(state)
            step(batch)

    toy.same_as_loop(run, loss, optimizer=toy.sgd, check="every")
