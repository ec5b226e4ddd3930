"""The step loop of each peer, as its own documentation sets it up, with everything switched off that a step does
not need: no logging, checkpoints, progress bars or validation. Each takes a clock and calls it after every step, or
every few, with the loss where it has one."""

import tempfile

import torch

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.01


class Repeated(torch.utils.data.Dataset):
    """One ready batch, again and again: the cheapest data there is."""

    def __init__(self, batch, steps):
        self.batch, self.steps = batch, steps

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        return self.batch

    def loader(self):
        return torch.utils.data.DataLoader(self, batch_size=None)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)


def plain_loop(model, forward, data, clock):
    optimizer = adamw(model)
    for inputs, target in data.loader():
        optimizer.zero_grad()
        loss = forward(inputs, target)
        loss.backward()
        optimizer.step()
        clock(loss)


def pytorch(model, data, clock):
    plain_loop(model, model, data, clock)


def torch_compile(model, data, clock):
    plain_loop(model, torch.compile(model), data, clock)


def torch_autotuned(model, data, clock):
    plain_loop(model, torch.compile(model, mode="max-autotune"), data, clock)


def lightning(model, data, clock):
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            return self.model(*batch)

        def configure_optimizers(self):
            return adamw(self.model)

    class Clock(L.Callback):
        def on_train_batch_end(self, trainer, module, outputs, *_):
            clock(outputs["loss"])

    trainer = L.Trainer(
        max_steps=data.steps, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[Clock()],
        enable_progress_bar=False, enable_model_summary=False, barebones=False)
    trainer.fit(Module(), data.loader())


def hf_trainer(model, data, clock):
    import transformers

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, inputs, target):
            return {"loss": self.model(inputs, target)}

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            clock()

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            inputs, target = data.batch
            return Repeated({"inputs": inputs, "target": target}, data.steps).loader()

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=data.steps, learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY,
            optim="adamw_torch_fused", lr_scheduler_type="constant", max_grad_norm=0, logging_strategy="no",
            save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False)
        Trainer(Module(), arguments, train_dataset=data, callbacks=[Clock()]).train()


def mmengine(model, data, clock):
    import mmengine.hooks
    import mmengine.model
    import mmengine.runner

    class Module(mmengine.model.BaseModel):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, inputs, target, mode="loss"):
            return {"loss": self.model(inputs, target)}

    class Clock(mmengine.hooks.Hook):
        def after_train_iter(self, *_, **__):
            clock()

    inputs, target = data.batch
    with tempfile.TemporaryDirectory() as folder:
        mmengine.runner.Runner(
            Module(), folder, train_dataloader=Repeated({"inputs": inputs, "target": target}, data.steps).loader(),
            train_cfg={"by_epoch": False, "max_iters": data.steps},
            optim_wrapper={"optimizer": {"type": "AdamW", "lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY,
                                         "fused": True}},
            default_hooks={"logger": None, "checkpoint": None, "param_scheduler": None, "sampler_seed": None},
            custom_hooks=[Clock()], log_level="ERROR", experiment_name="benchmark").train()


def jax_loss(model):
    """loss(weights, buffers, key, inputs, target) -> loss, buffers of the PyTorch model, and its forward pass alone."""
    import jax
    import jax_models

    logits_of = getattr(jax_models, type(model).__name__)

    def loss(weights, buffers, key, inputs, target):
        net = jax_models.Net(weights, buffers, key)
        chances = jax.nn.log_softmax(logits_of(net, inputs))
        return -jax.numpy.take_along_axis(chances, target[..., None], -1).mean(), net.buffers

    return loss, lambda weights, inputs: logits_of(jax_models.Net(weights, {}), inputs)


def jax_step(loss):
    """One step of AdamW as PyTorch's: (state, batch) -> state, loss."""
    import jax

    def step(state, batch):
        weights, first, second, buffers, count, key = state
        key, used = jax.random.split(key)
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(weights, buffers, used, *batch)
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradients)
        scale = LEARNING_RATE / (1 - 0.9**count)
        correction = (1 - 0.999**count) ** 0.5

        def update(w, m, v):
            return w * (1 - LEARNING_RATE * WEIGHT_DECAY) - scale * m / (jax.numpy.sqrt(v) / correction + 1e-8)

        return (jax.tree.map(update, weights, first, second), first, second, buffers, count, key), value

    return step


def jax_train(model, data, clock, steps_per_call):
    import jax
    import jax_models

    weights = jax_models.from_torch(model.named_parameters())
    buffers = jax_models.from_torch(item for item in model.named_buffers() if "running" in item[0])
    inputs, target = (jax_models.from_torch([("", tensor)])[""] for tensor in data.batch)
    step = jax_step(jax_loss(model)[0])
    zeros = [jax.tree.map(jax.numpy.zeros_like, weights) for _ in range(2)]
    state = weights, *zeros, buffers, jax.numpy.float32(0), jax.random.key(0, impl="rbg")
    batch = inputs, target
    if steps_per_call > 1:  # a batch of its own for each step
        batch = jax.tree.map(lambda x: jax.numpy.stack([x] * steps_per_call), batch)
        run = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches), donate_argnums=0)
    else:
        run = jax.jit(step, donate_argnums=0)
    for _ in range(0, data.steps, steps_per_call):
        state, loss = run(state, batch)
        clock(loss.ravel()[-1] if steps_per_call > 1 else loss, steps_per_call)


def jax_jit(model, data, clock):
    jax_train(model, data, clock, 1)


def jax_scan(model, data, clock):
    jax_train(model, data, clock, 50)


def forward_torch(model, data, clock, compiled=lambda model: model):
    forward, (inputs, _) = compiled(model.eval()), data.batch
    with torch.no_grad():
        for _ in range(data.steps):
            clock(forward(inputs))


def forward_jax(model, data, clock):
    import jax
    import jax_models

    weights = jax_models.from_torch(model.named_parameters())
    inputs = jax_models.from_torch([("", data.batch[0])])[""]
    run = jax.jit(jax_loss(model)[1])
    for _ in range(data.steps):
        clock(run(weights, inputs))


PEERS = {
    "PyTorch eager": pytorch,
    "torch.compile": torch_compile,
    "max-autotune": torch_autotuned,
    "Lightning": lightning,
    "HF Trainer": hf_trainer,
    "mmengine": mmengine,
    "JAX jit": jax_jit,
    "JAX scan": jax_scan,
}
# Of the forward pass alone.
FORWARD_PEERS = {
    "PyTorch eager": forward_torch,
    "torch.compile": lambda *run: forward_torch(*run, compiled=torch.compile),
    "max-autotune": lambda *run: forward_torch(*run, compiled=lambda model: torch.compile(model, mode="max-autotune")),
    "JAX jit": forward_jax,
}


def peers_of(case):
    return FORWARD_PEERS if case.endswith("forward") else PEERS
