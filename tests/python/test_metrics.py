"""Metrics of the library and of one's own, against figures computed here."""

import pytest
import torch

import duet
import toy


def evaluated(mode, metrics, outputs=1):
    """The results of a linear model over toy data, its predictions and targets (numbers, or classes 0 and 1)."""
    torch.manual_seed(1)
    trainer = duet.make_trainer(
        mode,
        torch.nn.Linear(8, outputs),
        lambda prediction, batch: prediction.square().mean(),
        forward=toy.forward,
        metrics=metrics,
        default_hooks=False,
    )
    data = toy.batches(5, classes=2)
    values = trainer.validate(data)
    with torch.no_grad():
        predictions = torch.cat([trainer.model(batch["x"]) for batch in data]).double()
    return values, predictions, torch.cat([batch["y"] for batch in data])


def test_metrics_and_predictions(mode):
    class Zeros(duet.Metric):
        def names(self):
            return ["zeros"]

        def reset(self):
            self.count = torch.zeros(())

        def add(self, batch, outputs, weight):
            assert weight == len(batch["y"])
            self.count += (outputs["prediction"].argmax(1) == 0).sum()

        def compute(self):
            return {"zeros": float(self.count)}

    metrics = [duet.Accuracy(target="y"), Zeros()]
    trainer = duet.make_trainer(mode, toy.model(), toy.loss_of, forward=toy.forward, metrics=metrics, default_hooks=False)
    data = toy.batches(5)
    values = trainer.validate(data)
    module = trainer.model.eval()
    with torch.no_grad():
        predictions = [module(batch["x"]) for batch in data]
    right = sum(int((p.argmax(1) == b["y"]).sum()) for p, b in zip(predictions, data))
    assert values["accuracy"] == pytest.approx(right / 60)
    assert values["zeros"] == sum(int((p.argmax(1) == 0).sum()) for p in predictions)
    assert torch.equal(trainer.predict(data[0])["prediction"], predictions[0])
    assert all(torch.equal(o["prediction"], p) for o, p in zip(trainer.predict_all(data), predictions))


def area(scores, targets):
    """Of all pairs of a positive and a negative, the share in which the positive scores higher."""
    return float((scores[targets == 1][:, None] > scores[targets == 0]).double().mean())


def test_metrics_of_the_library_are_figures_over_all_batches(mode):
    kinds = [duet.MeanSquaredError, duet.MeanAbsoluteError, duet.R2Score, duet.Auroc, duet.AveragePrecision, duet.CalibrationError]
    values, predictions, targets = evaluated(mode, [kind(target="y") for kind in kinds])  # all figures: tests/metrics
    assert {"mse", "mae", "r2", "auroc", "map", "calibration_error"} <= {*values}
    assert values["mse"] == pytest.approx(float((predictions.flatten() - targets).square().mean()))


class Area(duet.Metric):
    """No function of sums: it needs the scores of all ranks."""

    def names(self):
        return ["area"]

    def reset(self):
        self.scores, self.targets = torch.empty(0), torch.empty(0, dtype=torch.int64)

    def add(self, batch, outputs, weight):
        self.scores = torch.cat([self.scores, outputs["prediction"].flatten()])
        self.targets = torch.cat([self.targets, batch["y"]])

    def rows(self):
        return [self.scores, self.targets]

    def set_rows(self, rows):
        self.scores, self.targets = rows

    def compute(self):
        return {"area": area(self.scores, self.targets)}


def test_rows_of_ones_own_make_a_figure(mode):
    values, scores, targets = evaluated(mode, [duet.Auroc(target="y"), Area()])  # of several ranks: test_distributed.py
    assert values["auroc"] == pytest.approx(values["area"]) == area(scores.flatten(), targets)


def test_rows_that_nobody_takes_are_refused():
    class Half(Area):
        set_rows = property()

    with pytest.raises(duet.ConfigError, match="set_rows"):
        duet.EagerTrainer(torch.nn.Linear(8, 1), toy.loss, metrics=[Half()], default_hooks=False)
