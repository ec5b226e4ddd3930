"""The step loop of each peer, as its own documentation sets it up, with everything switched off that a step does
not need: no logging, checkpoints, progress bars or validation. Each takes a clock and calls it after every step."""

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
        forward(inputs, target).backward()
        optimizer.step()
        clock()


def pytorch(model, data, clock):
    plain_loop(model, model, data, clock)


def torch_compile(model, data, clock):
    plain_loop(model, torch.compile(model), data, clock)


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
        def on_train_batch_end(self, *_):
            clock()

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


PEERS = {
    "PyTorch eager": pytorch,
    "torch.compile": torch_compile,
    "Lightning": lightning,
    "HF Trainer": hf_trainer,
    "mmengine": mmengine,
}
