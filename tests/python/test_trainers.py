"""GraphTrainer and EagerTrainer from Python."""

import threading
import time

import pytest
import torch

import duet
import toy


def make(mode, loss=toy.loss, **options):
    options = {"optimizer": duet.AdamW(lr=1e-2), "default_hooks": False, **options}
    return duet.make_trainer(mode, toy.model(), loss, **options)


def fitted(trainer, *data):
    torch.manual_seed(3)
    trainer.fit(*data)
    return trainer.model.state_dict()


def test_has_the_bits_of_pytorchs_loop(mode):
    data, module = toy.batches(10), toy.model()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
    torch.manual_seed(3)
    for batch in data * 5:
        toy.loop_step(module, toy.loss, optimizer, batch)
    toy.assert_same_bits(fitted(make(mode, max_epochs=5), data), module.state_dict())


def test_a_loop_of_ones_own(mode):
    trainer = make(mode)
    losses = [trainer.step(batch) for batch in toy.batches(10)]
    assert all(loss.dim() == 0 for loss in losses) and len({float(loss) for loss in losses}) == 10
    trainer.finish()
    if mode == "graph":
        assert toy.captured(trainer.report()) == ["step"] and trainer.explain(toy.batches(1)[0]).captured


def test_a_resume_goes_on_bit_by_bit(mode, tmp_path):
    loader = torch.utils.data.DataLoader(
        [{"x": b["x"][0], "y": b["y"][0]} for b in toy.batches(40)], batch_size=8, shuffle=True
    )
    whole = fitted(make(mode, max_steps=12), loader)
    first = make(mode, max_steps=7)
    fitted(first, loader)
    path = first.save(str(tmp_path))
    second = make(mode, max_steps=12)
    torch.manual_seed(99)
    second.load(path)
    second.fit(loader)
    toy.assert_same_bits(whole, second.model.state_dict())


class Watch(duet.Hook):
    """Keeps what it sees."""

    def __init__(self):
        self.seen, self.kept = [], None


def test_many_steps_in_one_call_are_the_same_steps(mode):
    alone, at_once = make(mode), make(mode)
    batches = toy.batches(10)
    torch.manual_seed(3)
    losses = [alone.step(batch) for batch in batches + batches[:7]]
    torch.manual_seed(3)
    iterator = iter(batches)
    assert [at_once.step_many(iterator, n) for n in (3, 0, 4)] == [3, 0, 4]
    assert torch.equal(at_once.result["loss"], losses[6])
    assert (at_once.step_many(iterator, 100), at_once.step_many(iterator, 100)) == (3, 0)
    assert at_once.step_many(batches, 7) == 7
    assert torch.equal(at_once.result["loss"], losses[16])
    toy.assert_same_bits(at_once.model.state_dict(), alone.model.state_dict())
    assert at_once.progress.step == 17


def test_named_loaders_are_one_validation_with_results_of_each(mode):
    loaders = {"clean": toy.batches(3), "noisy": toy.batches(2, seed=2)}
    stop = duet.EarlyStoppingHook(monitor="noisy/loss", rule="greater", stopping_threshold=0.0)
    trainer = make(mode, max_steps=6, val_interval=2, hooks=[stop])
    trainer.fit(toy.batches(6), loaders)
    assert (trainer.progress.step, trainer.outcome) == (2, "stopped") and "noisy/loss" in trainer.stop_reason
    values = trainer.validate(loaders)
    assert values == {f"{name}/loss": trainer.validate(loader)["loss"] for name, loader in loaders.items()}
    assert trainer.test(loaders) == values
    with pytest.raises(duet.ConfigError, match="called ''"):
        trainer.validate({"": loaders["clean"]})


def test_a_hook_that_wants_the_outputs_of_a_step_gets_them(mode):
    class Outputs(Watch):
        wants_outputs = True

        def after_train_iter(self, run):
            (outputs,) = run.step_outputs
            self.seen.append(outputs["prediction"])

    watch, data = Outputs(), toy.batches(8)
    watched, silent = (make(mode, toy.loss_of, forward=toy.forward, hooks=hooks, max_steps=8) for hooks in ([watch], []))
    toy.assert_same_bits(fitted(watched, data), fitted(silent, data))
    assert [tuple(p.shape) for p in watch.seen] == [(12, 3)] * 8 and not watch.seen[0].requires_grad


def test_hooks_in_python_see_the_run_and_change_it(mode):
    class Stops(Watch):
        priority = 10

        def after_train_iter(self, run):
            self.seen.append((run.progress.step, float(run.loss)))
            self.kept = run
            run.log("twice", 2 * float(run.loss))
            if run.progress.step == 7:
                run.request_stop("seven are enough")

        def state_dict(self):
            return {"count": len(self.seen)}

        def load_state_dict(self, state):
            self.count = state["count"]

    watch, other = Stops(), Stops()
    trainer = make(mode, max_steps=20, hooks=[watch])
    trainer.fit(toy.batches(20))
    assert [step for step, _ in watch.seen] == list(range(1, 8))
    assert trainer.stop_reason == "seven are enough" and trainer.hooks() == ["Stops"]
    with pytest.raises(duet.ConfigError, match="after the call"):
        watch.kept.progress
    make(mode, max_steps=20, hooks=[other]).load_state_dict(trainer.state_dict())
    assert other.count == 7


class Typo(duet.Hook):
    def after_train_itr(self, run):
        pass


class Grows(duet.Hook):
    def __init__(self, model):
        self.model = model

    def after_train_epoch(self, run):
        self.model.new = torch.nn.Linear(2, 2)


def fit_and_grow(mode):
    model = toy.model()
    duet.make_trainer(mode, model, toy.loss, hooks=[Grows(model)], max_epochs=2, default_hooks=False).fit(toy.batches(3))


def step_and_grow(mode):
    trainer = make(mode)
    for batch in toy.batches(3):
        trainer.step(batch)
    trainer.model.new = torch.nn.Linear(2, 2)
    trainer.step(batch)
    trainer.finish()


def first_step(mode, loss):
    return make(mode, loss).step(toy.batches(1)[0])


# What is said -> what was done.
MISTAKES = {
    "after_train_itr.*after_train_iter": lambda mode: make(mode, hooks=[Typo()]),
    r"class EMAHook.*pass EMAHook\(\)": lambda mode: make(mode, hooks=[duet.EMAHook]),
    r"class Typo.*pass Typo\(\)": lambda mode: make(mode, hooks=[Typo]),
    r"class Accuracy.*pass Accuracy\(\)": lambda mode: make(mode, metrics=[duet.Accuracy]),
    "no option 'optimiser'.*optimizer": lambda mode: make(mode, optimiser=duet.SGD()),
    "no option 'save_best'; known: .*max_epochs": lambda mode: make(mode, save_best="accuracy"),
    "check is 'never', expected every, budget, off": lambda mode: make(mode, check="never"),
    "neither forward nor predict_step.*forward=lambda": lambda mode: make(mode).predict(toy.batches(1)[0]),
    "'prediction' among them.*forward=": lambda mode: make(mode, metrics=[duet.Accuracy()]).validate(toy.batches(1)),
    "generator that has no batches left in epoch 1, .*DataLoader": lambda mode: make(mode, max_epochs=2).fit(b for b in toy.batches(3)),
    "lr is -1": lambda mode: duet.AdamW(lr=-1.0),
    "no option 'learning_rate'": lambda mode: duet.AdamW(learning_rate=1.0),
    "graph_step": lambda mode: make(mode, optimizer=toy.sgd(toy.model())),
    "torch.nn.Module": lambda mode: duet.make_trainer(mode, lambda x: x, toy.loss),
    r"loss is CrossEntropyLoss\(\), expected .*with forward=": lambda mode: make(mode, torch.nn.CrossEntropyLoss()),
    "'new.weight' has come to the model": fit_and_grow,
    "'new.weight' has come to the model since": step_and_grow,
    "found a model in DataParallel": lambda mode: duet.make_trainer(mode, torch.nn.DataParallel(toy.model()), toy.loss),
    "0-dim tensor": lambda mode: first_step(mode, lambda model, batch: 3.0),
    "'accuracy' as a number": lambda mode: first_step(mode, lambda model, batch: (toy.loss(model, batch), {"accuracy": 0.5})),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message, mode):
    with pytest.raises((duet.ConfigError, duet.DataError), match=message):
        MISTAKES[message](mode)


@pytest.mark.parametrize("kind", ["loss", "hook", "loader"])
def test_an_exception_of_ones_own_leaves_everything_usable(kind, mode):
    class Mine(Exception):
        pass

    def breaks(here):
        if armed and here == kind:
            armed.clear()
            raise Mine(kind)

    class Break(duet.Hook):
        def after_train_iter(self, run):
            breaks("hook")

    class Loader(list):
        def __iter__(self):
            for batch in super().__iter__():
                yield batch
                breaks("loader")

    def loss(model, batch):
        breaks("loss")
        return toy.loss(model, batch)

    armed, data = [True], Loader(toy.batches(10))
    trainer = make(mode, loss, max_steps=100, hooks=[Break()])
    with pytest.raises(Mine, match=kind):
        trainer.fit(data)
    trainer.fit(data)
    assert trainer.progress.step == 100 and trainer.finished


def test_the_gil_is_free_while_steps_run():
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0)

    module = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
    step = duet.graph_step(module, lambda m, x: m(x).square().mean(), toy.sgd(module), check="off")
    x = torch.ones(256, 512)
    for _ in range(3):
        step(x)
    counter = threading.Thread(target=count)
    counter.start()
    before = counted[0]
    step(x)
    during = counted[0] - before
    done.set()
    counter.join()
    assert during > 0


def test_two_trainers_in_two_threads():
    results, data = {}, toy.batches(10)

    def run(i, module):
        torch.set_num_threads(1)
        trainer = duet.GraphTrainer(module, toy.loss, optimizer=duet.SGD(lr=0.1), max_steps=200, default_hooks=False)
        trainer.fit(data)
        results[i] = module.state_dict()

    linear = torch.nn.Linear(8, 3)
    threads = [threading.Thread(target=run, args=(i, toy.twin(linear))) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    toy.assert_same_bits(results[0], results[1])


@pytest.mark.parametrize("call", ["predict", "predict_all", "validate", "fit"])
def test_another_thread_has_to_wait_until_a_run_ends(call):
    within, done = threading.Event(), threading.Event()

    def loss(prediction, batch):
        within.set()
        done.wait()
        return toy.loss_of(prediction, batch)

    trainer = duet.EagerTrainer(
        toy.model(), loss, forward=toy.forward, optimizer=duet.SGD(lr=0.1), max_steps=1, default_hooks=False)  # fmt: skip
    batches = toy.batches(1)
    run = threading.Thread(target=trainer.fit, args=(batches,), daemon=True)
    run.start()
    assert within.wait(60)
    with pytest.raises(duet.ConfigError, match="runs already, in another thread"):
        getattr(trainer, call)(batches[0] if call == "predict" else batches)
    done.set()
    run.join()
    assert trainer.progress.step == 1
    trainer.predict(batches[0])


def test_options_say_what_they_are():
    options = duet.AdamW(lr=3e-4, betas=[0.8, 0.9])
    assert options.lr == 3e-4 and options.betas == [0.8, 0.9]
    options.weight_decay = 0.1
    assert "lr=0.0003" in repr(options) and "weight_decay=0.1" in repr(options)
    assert "lr" in duet.AdamW.__doc__ and "number" in duet.AdamW.__doc__
    with pytest.raises(duet.ConfigError, match="betas"):
        options.betas = 3
    assert issubclass(duet.ConfigError, ValueError) and issubclass(duet.GraphError, duet.Error)


def test_parameter_groups(mode):
    first = ("hidden.weight", "output.weight")

    def groups(module, of_first):
        rest = [p for name, p in module.named_parameters() if name not in first]
        return [{"params": of_first, "weight_decay": 0.1}, {"params": rest, "lr": 1e-4, "betas": (0.8, 0.9)}]

    module, other = toy.model(), toy.model()
    optimizer = torch.optim.AdamW(groups(other, [other.hidden.weight, other.output.weight]), lr=1e-3, fused=True)
    trainer = duet.make_trainer(
        mode, module, toy.loss, optimizer=duet.AdamW(lr=1e-3), param_groups=groups(module, list(first)), default_hooks=False
    )
    assert trainer.get("lr", 1) == 1e-4 and trainer.get("weight_decay") == 0.1
    for batch in toy.batches(10):
        state = torch.get_rng_state()
        trainer.step(batch)
        torch.set_rng_state(state)
        toy.loop_step(other, toy.loss, optimizer, batch)
    toy.assert_same_bits(module.state_dict(), other.state_dict())


def test_weights_go_to_files_and_back(mode, tmp_path):
    trainer = make(mode)
    trainer.step(toy.batches(1)[0])
    for name in ("weights.safetensors", "weights.pt"):
        path = str(tmp_path / name)
        duet.write_weights(path, trainer.weights())
        other = make(mode)
        other.load_weights(path)
        toy.assert_same_bits(dict(other.model.state_dict()), dict(trainer.model.state_dict()))
    loaded = torch.load(tmp_path / "weights.pt", weights_only=True)
    toy.assert_same_bits(dict(sorted(loaded.items())), dict(sorted(trainer.model.state_dict().items())))


def test_weights_leave_out_buffers_that_are_not_persistent(tmp_path):
    def masked():
        module = toy.model()
        module.output.register_buffer("mask", torch.ones(3), persistent=False)
        return module

    torch.save(masked().state_dict(), tmp_path / "torch.pt")
    trainer = duet.make_trainer("eager", masked(), toy.loss, optimizer=duet.SGD(lr=0.1), default_hooks=False)
    trainer.load_weights(str(tmp_path / "torch.pt"))
    duet.write_weights(str(tmp_path / "duet.safetensors"), trainer.weights())
    masked().load_state_dict(duet.read_weights(str(tmp_path / "duet.safetensors")))
    saved = duet.read_weights(trainer.save(str(tmp_path)))
    assert "output.mask" in saved  # a resume needs it
